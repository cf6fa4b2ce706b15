// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
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
	assert.False(t, woken(s), "a change of another key does not wake the subscription")
	assert.True(t, woken(other))

	h.Changed(nodeA)
	h.Changed(nodeA)
	h.Changed(nodeA)
	assert.True(t, woken(s))
	assert.False(t, woken(s), "many changes cause one wake-up")
	assert.True(t, woken(other), "a change wakes every subscription to the object")

	h.Changed(nodeA)
	assert.True(t, woken(s), "the next change wakes the subscription again")

	h.Changed(Ref{kind: "Node", namespace: "default", name: "node-a"})
	h.Changed(RefTo(&corev1.Pod{}, "", "node-a"))
	assert.False(t, woken(s), "kind, namespace and name must match")
}

func TestSubscription_Add(t *testing.T) {
	h := NewHub()
	s := h.Subscribe()
	h.Changed(nodeA)
	assert.False(t, woken(s))
	s.Add(nodeA)
	s.Add(nodeA, podA)
	h.Changed(nodeA)
	h.Changed(podA)
	assert.True(t, woken(s))
	assert.False(t, woken(s), "a key that is added twice has no second effect")
	assert.Equal(t, 2*128, s.Size())
	h.mu.Lock() // Calls that read the same objects again must not delay the changes of others.
	defer h.mu.Unlock()
	s.Add(nodeA, podA)
}

func TestSubscription_Close(t *testing.T) {
	h := NewHub()
	s, stays := h.Subscribe(nodeA, podA), h.Subscribe(nodeA)
	s.Add(nodeB)
	s.Close()
	h.Changed(nodeA)
	assert.False(t, woken(s), "a change does not wake a closed subscription")
	assert.True(t, woken(stays), "a change wakes the other subscriptions")
	assert.Len(t, h.subs, 1)
	s.Close()
	stays.Close()
	assert.Empty(t, h.subs, "the hub keeps no closed subscription")
}

// The race detector checks this test. A client that subscribes before it looks misses no change.
func TestHub_IsSafeForConcurrentUse(t *testing.T) {
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

func TestHub_Selection(t *testing.T) {
	agents := framework.Selection{Name: "test/agents", Example: &corev1.Pod{}}
	h := NewHub()
	onA, onB := h.Subscribe(Selected(agents, "node-a")), h.Subscribe(Selected(agents, "node-b"))
	pods, other := h.Subscribe(RefTo(&corev1.PodList{}, "", "")), agents
	other.Name = "test/other"

	h.Changed(Selected(agents, "node-a"))
	assert.True(t, woken(onA))
	assert.False(t, woken(onB), "the object is on another node")
	assert.False(t, woken(pods), "the cache of pods has not changed")
	h.Changed(Selected(other, "node-a"))
	assert.False(t, woken(onA), "another selection has changed")
	h.Changed(RefTo(&corev1.Pod{}, "kube-system", "agent"))
	assert.False(t, woken(onA), "the cache of pods has changed, not the selection")
}
