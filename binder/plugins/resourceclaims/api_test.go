// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/notify"
	"github.com/prebind/prebind/test/fakeapi"
)

// apiServer is the API server of these tests. It has the plugin's index, sends changes to a
// hub, and records faults of the plugin.
type apiServer struct {
	*fakeapi.Server
	hub *notify.Hub

	mu sync.Mutex
	// faults are the faults that noteTheft has recorded.
	faults []string
}

func newAPI(objects ...client.Object) *apiServer {
	s := &apiServer{Server: withIndex(), hub: notify.NewHub()}
	s.Admit(s.noteTheft)
	s.OnChange(func(o client.Object, _ bool) { s.hub.Wake(o) })
	for _, o := range objects {
		s.Put(o)
	}
	return s
}

// withIndex returns a server or a cache that has the index of the plugin.
func withIndex() *fakeapi.Server {
	s := fakeapi.New()
	_ = addIndex(context.Background(), s)
	return s
}

func claimNamed(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// get reads an object. The read is not counted.
func (s *apiServer) get(key client.ObjectKey, into client.Object) error {
	into.SetNamespace(key.Namespace)
	into.SetName(key.Name)
	return fakeapi.Read(s.Server, into)
}

// claim returns the claim of the default namespace, or nil.
func (s *apiServer) claim(name string) *resourcev1.ResourceClaim {
	if claim, ok := fakeapi.Get(s.Server, claimNamed(name)); ok {
		return claim
	}
	return nil
}

// change changes the status or another part of a claim, as another client.
func (s *apiServer) change(name, manager string, f func(*resourcev1.ResourceClaim)) {
	fakeapi.Change(s.Server, claimNamed(name), manager, f)
}

// written lists the writes, in order.
func (s *apiServer) written() []string {
	var all []string
	for _, w := range s.Writes() {
		all = append(all, w.String())
	}
	return all
}

// cached is the cache of a replica. It contains claims in the state that follow copied last,
// pods without a node, and all other objects.
type cached struct {
	client.Reader
	api *apiServer
	// frozen contains the claims of the cache. Nil means that the cache is up to date.
	frozen *fakeapi.Server
	// pods and nodes, if set, replace the pods and nodes of the API server.
	pods  map[client.ObjectKey]*corev1.Pod
	nodes map[string]*corev1.Node
}

// cache returns a cache. Its reads do not count as reads from the API server.
func (s *apiServer) cache() *cached { return &cached{Reader: s.Cache(), api: s} }

// freeze stops updates of the claims.
func (c *cached) freeze() {
	c.frozen = withIndex()
	for _, claim := range fakeapi.All(c.api.Server, &resourcev1.ResourceClaim{}) {
		c.frozen.Put(claim)
	}
}

// follow updates one claim.
func (c *cached) follow(key client.ObjectKey) {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if live, ok := fakeapi.Get(c.api.Server, claim); ok {
		c.frozen.Put(live)
	} else {
		c.frozen.Remove(claim)
	}
}

func (c *cached) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	switch into := into.(type) {
	case *resourcev1.ResourceClaim:
		if c.frozen != nil {
			return c.frozen.Cache().Get(ctx, key, into, options...)
		}
	case *corev1.Pod:
		if pod := c.pods[key]; pod != nil {
			pod.DeepCopyInto(into)
			return nil
		}
		if err := c.Reader.Get(ctx, key, into, options...); err != nil {
			return err
		}
		if into.Spec.NodeName != "" {
			*into = corev1.Pod{}
			return fakeapi.NotFound("Pod", key.Name)
		}
		return nil
	case *corev1.Node:
		if node := c.nodes[key.Name]; node != nil {
			node.DeepCopyInto(into)
			return nil
		}
	}
	return c.Reader.Get(ctx, key, into, options...)
}

func (c *cached) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, claims := list.(*resourcev1.ResourceClaimList); claims && c.frozen != nil {
		return c.frozen.Cache().List(ctx, list, options...)
	}
	return c.Reader.List(ctx, list, options...)
}
