// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/prebind/prebind/test/gen"
)

var (
	nodeA = RefTo(&corev1.Node{}, "", "node-a")
	nodeB = RefTo(&corev1.Node{}, "", "node-b")
	podA  = RefTo(&corev1.Pod{}, "default", "a")
)

// woken returns whether the subscription has been woken, and resets it.
func woken(s *Subscription) bool {
	select {
	case <-s.C():
		return true
	default:
		return false
	}
}

func TestSubscription(t *testing.T) {
	h := NewHub()
	s := h.Subscribe(nodeA)
	other := h.Subscribe(nodeA, nodeB)
	assert.False(t, woken(s), "nothing has changed yet")

	h.Changed(nodeB)
	assert.False(t, woken(s), "another key")
	assert.True(t, woken(other))

	h.Changed(nodeA)
	h.Changed(nodeA)
	h.Changed(nodeA)
	assert.True(t, woken(s))
	assert.False(t, woken(s), "many changes are one wake-up")
	assert.True(t, woken(other), "every subscription is woken")

	h.Changed(nodeA)
	assert.True(t, woken(s), "and again by the next change")

	h.Changed(Ref{kind: "Node", namespace: "default", name: "node-a"})
	h.Changed(RefTo(&corev1.Pod{}, "", "node-a"))
	assert.False(t, woken(s), "kind, namespace and name all count")
}

func TestAdd(t *testing.T) {
	h := NewHub()
	s := h.Subscribe()
	h.Changed(nodeA)
	assert.False(t, woken(s))
	s.Add(nodeA)
	s.Add(nodeA, podA)
	h.Changed(nodeA)
	h.Changed(podA)
	assert.True(t, woken(s))
	assert.False(t, woken(s), "a key that is added twice is there once")
}

func TestClose(t *testing.T) {
	h := NewHub()
	s, stays := h.Subscribe(nodeA, podA), h.Subscribe(nodeA)
	s.Add(nodeB)
	s.Close()
	h.Changed(nodeA)
	assert.False(t, woken(s), "a closed subscription is not woken")
	assert.True(t, woken(stays), "the others are")
	assert.Len(t, h.subs, 1)
	s.Close()
	stays.Close()
	assert.Empty(t, h.subs, "nothing stays in the hub")
}

// TestHubIsConcurrent is for the race detector; and whoever subscribes first and
// looks then misses nothing.
func TestHubIsConcurrent(t *testing.T) {
	h := NewHub()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 200 {
				s := h.Subscribe(nodeA)
				s.Add(nodeB)
				h.Changed(nodeB)
				<-s.C()
				s.Close()
			}
		})
	}
	group.Wait()
	assert.Empty(t, h.subs)
}

// TestAttach runs a real informer: additions, updates and deletions wake, and
// the store holds the change by then.
func TestAttach(t *testing.T) {
	source := fcache.NewFakeControllerSource()
	informer := cache.NewSharedIndexInformer(source, &corev1.Pod{}, 0, nil)
	h := NewHub()
	require.NoError(t, h.Attach(&corev1.Pod{}, informer))
	s := h.Subscribe(podA)
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() { informer.Run(stop) })
	defer group.Wait()
	defer close(stop)
	require.True(t, cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced))
	assert.False(t, woken(s))

	source.Add(gen.Pod("a", gen.UID("1")))
	<-s.C()
	held := func() *corev1.Pod {
		o, exists, err := informer.GetStore().GetByKey("default/a")
		require.NoError(t, err)
		if !exists {
			return nil
		}
		pod, ok := o.(*corev1.Pod)
		require.True(t, ok)
		return pod
	}
	assert.NotNil(t, held())

	source.Modify(gen.Pod("a", gen.UID("1"), gen.Label("changed", "yes")))
	<-s.C()
	assert.Equal(t, "yes", held().Labels["changed"])

	source.Delete(gen.Pod("a", gen.UID("1")))
	<-s.C()
	assert.Nil(t, held())
}

// handlers is an Informer that keeps its handler.
type handlers struct {
	cache.ResourceEventHandler
	err error
}

func (h *handlers) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	h.ResourceEventHandler = handler
	return nil, h.err
}

func TestAttachedHandler(t *testing.T) {
	pod := gen.Pod("a")
	cases := map[string]struct {
		reason string
		event  func(h cache.ResourceEventHandler)
		want   bool
	}{
		"InitialList": {reason: "the initial list counts as additions", event: func(h cache.ResourceEventHandler) { h.OnAdd(pod, true) }, want: true},
		"Updated":     {reason: "any update", event: func(h cache.ResourceEventHandler) { h.OnUpdate(pod, pod) }, want: true},
		"Deleted":     {reason: "a deletion that was seen", event: func(h cache.ResourceEventHandler) { h.OnDelete(pod) }, want: true},
		"MissedDelete": {reason: "a deletion that was missed and found later", event: func(h cache.ResourceEventHandler) {
			h.OnDelete(cache.DeletedFinalStateUnknown{Key: "default/a", Obj: pod})
		}, want: true},
		"OtherPod": {reason: "another object", event: func(h cache.ResourceEventHandler) { h.OnUpdate(gen.Pod("b"), gen.Pod("b")) }},
		"NoObject": {reason: "an invalid object wakes no subscription and does not panic", event: func(h cache.ResourceEventHandler) { h.OnAdd("a", false) }},
		"Unknown":  {reason: "nor does a deletion of nothing", event: func(h cache.ResourceEventHandler) { h.OnDelete(cache.DeletedFinalStateUnknown{}) }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			hub, informer := NewHub(), &handlers{}
			require.NoError(t, hub.Attach(&corev1.Pod{}, informer))
			s := hub.Subscribe(podA)
			tc.event(informer)
			assert.Equal(t, tc.want, woken(s), tc.reason)
		})
	}
}

func TestAttachFails(t *testing.T) {
	stopped := errors.New("stopped")
	assert.ErrorIs(t, NewHub().Attach(&corev1.Pod{}, &handlers{err: stopped}), stopped)
}
