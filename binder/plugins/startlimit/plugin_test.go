// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

func TestArguments(t *testing.T) {
	cases := map[string]struct {
		change func(a *Arguments)
		want   string
	}{
		"Limit":        {change: func(a *Arguments) { a.Limit = 0 }, want: "limit"},
		"Wait":         {change: func(a *Arguments) { a.Wait.Duration = 0 }, want: "wait"},
		"StartTimeout": {change: func(a *Arguments) { a.StartTimeout.Duration = -1 }, want: "startTimeout"},
		"Refusals":     {change: func(a *Arguments) { a.BreakerRefusals = maxRefusals + 1 }, want: "breakerRefusals"},
		"Window":       {change: func(a *Arguments) { a.BreakerWindow.Duration = 0 }, want: "breakerWindow"},
		"Open":         {change: func(a *Arguments) { a.BreakerOpen.Duration = 0 }, want: "breakerOpen"},
	}
	assert.Empty(t, Defaults().Validate(nil), "the defaults are valid")
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			a := Defaults()
			tc.change(a)
			problems := a.Validate(nil)
			require.Len(t, problems, 1)
			assert.Equal(t, tc.want, problems[0].Field)
		})
	}
}

// pods returns n pods on the node.
func pods(name string, n int, changes ...func(*corev1.Pod)) []client.Object {
	var all []client.Object
	for i := range n {
		all = append(all, bound(fmt.Sprint(name, i), changes...))
	}
	return all
}

// refusing returns three pods that the kubelet rejected.
func refusing(ago time.Duration) []client.Object {
	return pods("refused", 3, refusedFor("OutOfcpu", time.Now().Add(-ago)))
}

func assertWaits(t *testing.T, reason string, all ...*frameworktest.Running) {
	t.Helper()
	for _, r := range all {
		ended, err := r.Ended()
		require.False(t, ended, "%s: %v", reason, err)
	}
}

func assertTaken(t *testing.T, reason string, all ...*frameworktest.Running) {
	t.Helper()
	for _, r := range all {
		ended, err := r.Ended()
		require.True(t, ended, reason)
		require.NoError(t, err, reason)
	}
}

func TestPost_WaitsForSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(2), bound("old"))
		assertTaken(t, "one slot is free", w.start(t.Context(), "first"))
		two := w.start(t.Context(), "second")
		assertWaits(t, "the reservation of the first bind counts", two)
		assertTaken(t, "a pod of a DaemonSet needs no slot", w.start(t.Context(), "agent", gen.OwnedBy("DaemonSet", "agent", "1")))
		assert.Equal(t, 1, w.plugin.slots.count())
		w.Put(bound("first"))
		assertWaits(t, "the first pod counts once, as a pod or as a reservation", two)
		assert.Zero(t, w.plugin.slots.count(), "the cache contains the pod")

		three := w.start(t.Context(), "third")
		w.Put(bound("first", inPhase(corev1.PodRunning)))
		pace()
		var ended int
		for _, r := range []*frameworktest.Running{two, three} {
			if over, err := r.Ended(); over {
				require.NoError(t, err)
				ended++
			}
		}
		assert.Equal(t, 1, ended, "there was one slot")
		w.Remove(bound("old"))
		pace()
		assert.Equal(t, 2, w.plugin.slots.count(), "both have a slot")
		<-time.After(observeTime)
		synctest.Wait()
		assert.Empty(t, w.plugin.slots.nodes, "an idle node uses no memory")
	})
}

// pace lets a call make its next pass.
func pace() {
	<-time.After(50 * time.Millisecond)
	synctest.Wait()
}

func TestPost_Ends(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   func(a *Arguments)
		// act happens 10 s after the start of the wait, and the wait ends after the time.
		act   func(w *world)
		after time.Duration
		want  string
	}{
		"Rejected": {
			reason: "the scheduler should choose another node", after: 30*time.Second + binder.Settle,
			want: "start-limit: Node node-a: still waiting for pods on the node to start (limit 1) after 30s; choose another node",
		},
		"Opens": {
			reason: "the node rejects pods", act: func(w *world) {
				for _, pod := range refusing(0) {
					w.Put(pod)
				}
				w.Put(bound("old", inPhase(corev1.PodRunning)))
			}, after: 10*time.Second + binder.Settle + 50*time.Millisecond,
			want: "start-limit: Node node-a: the kubelet refused pods of the namespace default; no pod of the namespace is bound to the node before 2000-01-01T00:05:10Z; " +
				"choose another node, and check the events of the node",
		},
		"TimedOut": {reason: "the other pod did not start in time", after: 20 * time.Second, args: func(a *Arguments) { a.StartTimeout.Duration = 20 * time.Second }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				args := small(1)
				if tc.args != nil {
					tc.args(args)
				}
				// The clock of the API server is behind, which must not matter.
				w := newWorld(t, args, boundSince("old", time.Now().Add(-time.Hour)))
				running := w.start(t.Context(), "web")
				assertWaits(t, tc.reason, running)
				began := time.Now()
				<-time.After(10 * time.Second)
				if tc.act != nil {
					tc.act(w)
				}
				<-time.After(tc.after - time.Since(began) - time.Nanosecond)
				if tc.after > 12*time.Second {
					assertWaits(t, tc.reason, running)
				}
				<-time.After(time.Nanosecond)
				if tc.want == "" {
					assertTaken(t, tc.reason, running)
					return
				}
				ended, err := running.Ended()
				require.True(t, ended, tc.reason)
				require.EqualError(t, err, tc.want)
				assert.True(t, frameworktest.IsKind(err, framework.KindRefuse), tc.reason)
			})
		})
	}
}

// The cache shows the pod only after its bind, or never. A bind that is repeated can take effect for observeTime after its last call.
func TestReservation_Ends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(1))
		assertTaken(t, "a slot is free", w.start(t.Context(), "web"))
		<-time.After(observeTime - time.Nanosecond)
		assertTaken(t, "the bind is repeated", w.start(t.Context(), "web"))
		<-time.After(observeTime - 10*time.Second)
		next, again := w.start(t.Context(), "next"), w.start(t.Context(), "web")
		<-time.After(10*time.Second - time.Nanosecond)
		assertWaits(t, "the watch may be behind", next)
		assertWaits(t, "a bind that never succeeds does not keep its slot", again)
		assert.Equal(t, 1, w.plugin.slots.count())
		<-time.After(time.Nanosecond)
		synctest.Wait()
		ended, _ := next.Ended()
		endedAgain, _ := again.Ended()
		assert.NotEqual(t, ended, endedAgain, "one of both has the slot")
	})
}

// During a try, a second pod of the namespace does not get a slot.
func TestPost_TriesOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(5), refusing(5*time.Minute)...)
		assertTaken(t, "one pod tries the node", w.start(t.Context(), "first"))
		rejected := func(reason string) {
			second := w.start(t.Context(), "second")
			<-time.After(binder.Settle)
			_, err := second.Ended()
			require.ErrorContains(t, err, "another one tries the node now", reason)
		}
		rejected("the first bind has a slot")
		assertTaken(t, "another namespace has its own breaker", w.start(t.Context(), "third", gen.InNamespace("other")))
		w.Put(bound("first"))
		rejected("the pod starts")
		w.Put(bound("first", inPhase(corev1.PodRunning)))
		assertTaken(t, "the pod has started", w.start(t.Context(), "second"))
	})
}
