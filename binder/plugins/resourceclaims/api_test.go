// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/fakeapi"
)

// apiServer is the API server of these tests.
type apiServer struct{ *fakeapi.Server }

func newAPI(objects ...client.Object) *apiServer { return &apiServer{Server: fakeapi.New(objects...)} }

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
