// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/test/gen"
)

var three = limits{refusals: 3, window: time.Minute, open: 5 * time.Minute}

// The times are seconds since the first rejection.
func TestBreaker(t *testing.T) {
	cases := map[string]struct {
		reason   string
		limits   limits
		refusals []int
		at       int
		want     phase
	}{
		"Opens":        {reason: "the third rejection opens it", limits: three, refusals: []int{0, 30, 60}, at: 60, want: open},
		"Slow":         {reason: "the rejections are not within the window", limits: three, refusals: []int{0, 30, 61}, at: 61, want: closed},
		"SlowThenFast": {reason: "the last three are within the window", limits: three, refusals: []int{0, 50, 70, 100}, at: 100, want: open},
		"StillOpen":    {reason: "the time is not over", limits: three, refusals: []int{0, 0, 0}, at: 299, want: open},
		"Tries":        {reason: "one pod tries the node", limits: three, refusals: []int{0, 0, 0}, at: 300, want: trying},
		"Closes":       {reason: "no pod was rejected during the window", limits: three, refusals: []int{0, 0, 0}, at: 360, want: closed},
		"OpensAgain":   {reason: "the pod that tried the node was rejected", limits: three, refusals: []int{0, 0, 0, 310}, at: 311, want: open},
		"TriesAgain":   {reason: "the second try is after the second time", limits: three, refusals: []int{0, 0, 0, 310}, at: 610, want: trying},
		"Extends":      {reason: "pods that were bound before are rejected later", limits: three, refusals: []int{0, 0, 0, 100}, at: 350, want: open},
		"StartsAgain":  {reason: "earlier rejections do not count after the window", limits: three, refusals: []int{0, 0, 0, 370, 371}, at: 372, want: closed},
		"One":          {reason: "the first rejection opens it", limits: limits{refusals: 1, window: time.Minute, open: time.Minute}, refusals: []int{0}, at: 1, want: open},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			began := time.Unix(1000, 0)
			after := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
			var inOrder, backwards history
			for i := range tc.refusals {
				inOrder = tc.limits.add(inOrder, after(tc.refusals[i]))
				backwards = tc.limits.add(backwards, after(tc.refusals[len(tc.refusals)-1-i]))
			}
			assert.Equal(t, tc.want, tc.limits.phase(inOrder, after(tc.at)), tc.reason)
			assert.Equal(t, inOrder, backwards, "the order does not matter, because an informer lists the pods in any order")
		})
	}
}

func newTestBreakers(l limits) (*breakers, *events.FakeRecorder) {
	b, recorder := newBreakers(), events.NewFakeRecorder(100)
	b.limits, b.clock, b.events, b.histories = l, clock.RealClock{}, recorder, utilcache.NewExpiring()
	return &b, recorder
}

func phaseOf(b *breakers, namespace, node string) phase {
	p, _ := b.at(namespace, gen.Node(node), clock.RealClock{}.Now())
	return p
}

func TestBreakers_AreSeparate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, recorder := newTestBreakers(three)
		for range 3 {
			b.refused(bound("a", refusedFor("OutOfcpu", time.Now())), false)
		}
		assert.Equal(t, open, phaseOf(b, "default", nodeA))
		assert.Equal(t, closed, phaseOf(b, "other", nodeA), "a tenant does not decide about pods of another tenant")
		assert.Equal(t, closed, phaseOf(b, "default", "node-b"), "another node has refused nothing")
		assert.InDelta(t, 1, testutil.ToFloat64(b.openings), 0)
		assert.Equal(t, "Warning NodeRefusesPods start-limit: the kubelet refused pods of the namespace default, most recently with the reason OutOfcpu; "+
			"Prebind binds no pods of this namespace to the node for 5m0s", <-recorder.Events)

		b.refused(bound("a", refusedFor("OutOfcpu", time.Now())), false)
		assert.Empty(t, recorder.Events, "the breaker is open already")
		<-time.After(5 * time.Minute)
		assert.Equal(t, trying, phaseOf(b, "default", nodeA))
		b.refused(bound("a", refusedFor("OutOfcpu", time.Now())), false)
		assert.Len(t, recorder.Events, 1, "the breaker opens again")
		<-time.After(6 * time.Minute)
		assert.Equal(t, closed, phaseOf(b, "default", nodeA))
	})
}

// After a restart, the rejected pods that exist are reported in any order.
func TestBreakers_AreRebuilt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, recorder := newTestBreakers(three)
		now := time.Now()
		handler := b.handler()
		for i, seconds := range []int{20, 400, 30, 25} {
			trimmed, _ := newPlugin().refusedPods().Transform(bound(strconv.Itoa(i), refusedFor("OutOfpods", now.Add(-time.Duration(seconds)*time.Second))))
			handler.OnAdd(trimmed, true)
		}
		assert.Equal(t, open, phaseOf(b, "default", nodeA))
		_, until := b.at("default", gen.Node(nodeA), now)
		assert.Equal(t, now.Add(5*time.Minute-20*time.Second), until)
		assert.Empty(t, recorder.Events, "the event was recorded before the restart")
	})
}

// A CI system creates a namespace for each run, and binds no more pods to the node.
func TestBreakers_AreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newTestBreakers(three)
		refuse := func(namespace string) {
			b.refused(bound("a", inNamespace(namespace), refusedFor("OutOfcpu", time.Now())), false)
		}
		for range 1000 {
			refuse("open")
		}
		assert.Len(t, b.of(breakerKey{namespace: "open", node: nodeA}).times, maxTimes)
		refuse("closed")
		<-time.After(6*time.Minute - time.Nanosecond)
		refuse("another")
		assert.Equal(t, 3, b.histories.Len(), "a refusal can matter")
		<-time.After(time.Nanosecond)
		refuse("another")
		assert.Equal(t, 1, b.histories.Len(), "the breakers are closed again")
	})
}

// After an interruption of the watch, the informer reports pods that are not new as new ones.
func TestBreakers_OldRefusalsAreNotNew(t *testing.T) {
	cases := map[string]struct {
		reason string
		ago    []time.Duration
		want   phase
		// until is when an open breaker lets a pod try.
		until time.Duration
	}{
		"Apart":    {reason: "the rejections are not within the window", ago: []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute}, want: closed},
		"Over":     {reason: "the breaker would be closed again", ago: []time.Duration{7 * time.Minute, 7 * time.Minute, 7 * time.Minute}, want: closed},
		"Together": {reason: "the breaker opens at the time of the rejections", ago: []time.Duration{2 * time.Minute, 2 * time.Minute, 2 * time.Minute}, want: open, until: 3 * time.Minute},
		"Recent":   {reason: "the clock of the node can be behind a little", ago: []time.Duration{0, 30 * time.Second, time.Minute}, want: open, until: 5 * time.Minute},
		"Ahead":    {reason: "the clock of the node is ahead", ago: []time.Duration{-time.Hour, -time.Hour, -time.Hour}, want: open, until: 5 * time.Minute},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _ := newTestBreakers(three)
				for _, ago := range tc.ago {
					b.refused(bound("a", refusedFor("OutOfcpu", time.Now().Add(-ago))), false)
				}
				assert.Equal(t, tc.want, phaseOf(b, "default", nodeA), tc.reason)
				if _, until := b.at("default", gen.Node(nodeA), time.Now()); tc.want == open {
					assert.Equal(t, time.Now().Add(tc.until), until, tc.reason)
				}
			})
		})
	}
}

// The clock of a node can be far behind.
func TestBreakers_SlowNodeClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := newTestBreakers(three)
		handler := b.handler()
		for _, name := range []string{"a", "b", "c"} {
			pod := bound(name, refusedFor("OutOfcpu", time.Now().Add(-7*time.Minute)), createdNow)
			trimmed, err := newPlugin().refusedPods().Transform(pod)
			require.NoError(t, err)
			handler.OnAdd(trimmed, false)
		}
		assert.Equal(t, open, phaseOf(b, "default", nodeA))
	})
}

// The kubelet of a deleted node has rejected pods, and a node with its name is created.
func TestBreakers_RecreatedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(5), refusing(0)...)
		<-time.After(time.Minute)
		node := gen.Node(nodeA)
		node.CreationTimestamp = metav1.Now()
		w.Put(node)
		assertTaken(t, "the kubelet of the new node has rejected nothing", w.start(t.Context(), "web"))
		state := func() phase {
			p, _ := w.plugin.refused.at("default", node, time.Now())
			return p
		}
		for i, ago := range []time.Duration{10 * time.Second, 5 * time.Second, time.Nanosecond} {
			w.Put(bound("late-"+strconv.Itoa(i), refusedFor("OutOfcpu", node.CreationTimestamp.Add(-ago))))
		}
		assert.Equal(t, closed, state(), "the watch reports pods of the earlier node late")
		for i, want := range []phase{closed, closed, open} {
			w.Put(bound("new-"+strconv.Itoa(i), refusedFor("OutOfcpu", time.Now().Add(-time.Minute)), createdNow)) // Its clock is behind.
			assert.Equal(t, want, state(), "rejection %d by the new node", i+1)
		}
	})
}
