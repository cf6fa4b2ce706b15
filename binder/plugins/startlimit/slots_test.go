// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/test/gen"
)

func TestReserve_SharesFreeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(4))
		replicas := 0
		w.plugin.h.Replicas = func() int { return replicas }
		reserve := func(name string) bool {
			bc := w.Context(thePod(name), gen.Node(nodeA))
			return w.plugin.Reserve(bc)
		}
		assert.True(t, reserve("a"))
		assert.False(t, reserve("b"), "the number of replicas is not known")
		replicas = 2
		assert.True(t, reserve("b"))
		assert.False(t, reserve("c"), "two slots are those of the other replica")
		assert.True(t, reserve("b"), "the bind is repeated")
		w.Put(bound("a"))
		assert.False(t, reserve("c"), "the replicas share three slots, and this one has reserved a slot")
		w.Put(bound("b"))
		assert.True(t, reserve("c"), "the replica has observed its pods")
		assert.False(t, reserve("d"), "one slot is that of the other replica")
		w.Put(bound("c"))
		assert.True(t, reserve("d"), "the other replica has not used its slot")
		w.Put(bound("d"))
		replicas = 1
		assert.False(t, reserve("e"), "the node is full")
	})
}

// newTestSlots returns slots of a replica.
func newTestSlots(changed func(node string)) *slots {
	return &slots{clock: clock.RealClock{}, timeout: time.Hour, nodes: map[string]map[types.UID]*slot{}, changed: changed}
}

// A bind that tries a node alone does not wait for its own slot, which it no longer has.
func TestUsage_EarlierSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestSlots(func(string) {})
		for range 2 {
			require.True(t, s.reserve(nodeA, "default", "a", rules{limit: 1}, true))
			<-time.After(observeTime * 2 / 3)
		}
		seen := s.usage(nodeA, "default", "a")
		assert.False(t, seen.own || seen.busy)
		assert.True(t, s.usage(nodeA, "default", "b").busy, "another pod waits")
	})
}

// The handler follows all changes of a pod that an informer reports.
func TestHandler(t *testing.T) {
	changes := 0
	s := newTestSlots(func(string) { changes++ })
	h := s.handler()
	trimmed := func(pod *corev1.Pod) any {
		p, _ := newPlugin().startingPods().Transform(pod)
		return p
	}
	starts, stuck, replaced := trimmed(bound("a")), trimmed(bound("a", waitsFor("ImagePullBackOff"))), trimmed(bound("b"))
	h.OnAdd(starts, true)
	assert.Len(t, s.nodes[nodeA], 1)
	h.OnUpdate(starts, stuck)
	assert.Empty(t, s.nodes, "a pod that is stuck does not count")
	h.OnUpdate(stuck, starts)
	assert.Empty(t, s.nodes, "the pod would count for longer than the timeout in all")
	h.OnDelete(starts)
	h.OnAdd(starts, false)
	assert.Len(t, s.nodes[nodeA], 1)
	h.OnUpdate(starts, replaced)
	assert.Contains(t, s.nodes[nodeA], types.UID("b"), "another pod has the name")
	assert.Len(t, s.nodes[nodeA], 1)
	h.OnDelete(replaced)
	assert.Empty(t, s.nodes)
	assert.Equal(t, 3, changes, "each end can end a wait")
}

// used returns the number of slots in use, while timers run.
func used(s *slots) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.nodes[nodeA])
}

// A pod that does not start changes again and again.
func TestHandler_CountsUntilTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := 0
		s := newTestSlots(func(string) { changes++ })
		h := s.handler()
		pod := bound("a")
		h.OnAdd(pod, false)
		<-time.After(time.Hour - time.Nanosecond)
		h.OnUpdate(pod, pod)
		assert.Equal(t, 1, used(s))
		<-time.After(time.Nanosecond)
		synctest.Wait()
		assert.Zero(t, used(s))
		assert.Equal(t, 1, changes, "a bind can have its slot")
		h.OnUpdate(pod, pod)
		assert.Zero(t, used(s))
	})
}

// While the number of replicas is unknown, a replica reserves one slot at a time.
func TestObserved_WakesTheNext(t *testing.T) {
	var woken []string
	s := newTestSlots(func(node string) { woken = append(woken, node) })
	r := rules{limit: 5}
	pod := bound("first")
	require.True(t, s.reserve(nodeA, pod.Namespace, pod.UID, r, false))
	require.False(t, s.reserve(nodeA, pod.Namespace, "second", r, false))
	s.observed(pod)
	assert.Equal(t, []string{nodeA}, woken)
	assert.True(t, s.reserve(nodeA, pod.Namespace, "second", r, false))
}
