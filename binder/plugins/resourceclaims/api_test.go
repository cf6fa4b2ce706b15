// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/test/fakeapi"
)

// apiServer is the API server of these tests. It sends changes to a hub.
type apiServer struct {
	*fakeapi.Server
	hub *notify.Hub
}

func newAPI(objects ...client.Object) *apiServer {
	s := &apiServer{Server: fakeapi.New(), hub: notify.NewHub()}
	s.OnChange(func(o client.Object, _ bool) { s.hub.Wake(o) })
	for _, o := range objects {
		s.Put(o)
	}
	return s
}

// claim returns the claim c, or nil.
func (s *apiServer) claim() *resourcev1.ResourceClaim {
	if claim, ok := fakeapi.Get(s.Server, theClaim("c")); ok {
		return claim
	}
	return nil
}

// change changes the status or another part of the claim c, as another client.
func (s *apiServer) change(manager string, f func(*resourcev1.ResourceClaim)) {
	fakeapi.Change(s.Server, theClaim("c"), manager, f)
}

// written lists the writes, in order.
func (s *apiServer) written() []string {
	var all []string
	for _, w := range s.Writes() {
		all = append(all, w.String())
	}
	return all
}

// cached is the cache of a replica.
type cached struct {
	client.Reader
	api *apiServer
}

// cache returns a cache. Its reads do not count as reads from the API server.
func (s *apiServer) cache() *cached { return &cached{Reader: s.Cache(), api: s} }
