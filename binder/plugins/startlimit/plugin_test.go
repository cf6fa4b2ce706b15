// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/plugintest"
)

func TestArguments(t *testing.T) {
	cases := map[string]struct {
		change func(a *Arguments)
		want   string
	}{
		"Limit":        {change: func(a *Arguments) { a.Limit = 0 }, want: "limit"},
		"Wait":         {change: func(a *Arguments) { a.Wait = 0 }, want: "wait"},
		"StartTimeout": {change: func(a *Arguments) { a.StartTimeout = -1 }, want: "startTimeout"},
		"Refusals":     {change: func(a *Arguments) { a.BreakerRefusals = maxRefusals + 1 }, want: "breakerRefusals"},
		"Window":       {change: func(a *Arguments) { a.BreakerWindow = 0 }, want: "breakerWindow"},
		"Open":         {change: func(a *Arguments) { a.BreakerOpen = 0 }, want: "breakerOpen"},
	}
	assert.Empty(t, Defaults().Validate(), "the defaults are valid")
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			a := Defaults()
			tc.change(a)
			problems := a.Validate()
			require.Len(t, problems, 1)
			assert.Equal(t, tc.want, problems[0].Field)
		})
	}
}

func TestRegistration(t *testing.T) {
	r := Registration()
	assert.False(t, r.On)
	names := func(a *Arguments) (all []string) {
		for _, s := range r.Selections(a) {
			require.NoError(t, s.Check())
			all = append(all, s.Name)
		}
		return all
	}
	assert.Equal(t, []string{"start-limit/starting", "start-limit/refused"}, names(Defaults()))
	off := Defaults()
	off.BreakerRefusals = 0
	assert.Equal(t, []string{"start-limit/starting"}, names(off), "without the breaker, the cache holds no failed pods")
}

// pods returns n pods that start.
func pods(n int, changes ...func(*corev1.Pod)) []client.Object {
	var all []client.Object
	for i := range n {
		all = append(all, bound(fmt.Sprintf("starting-%d", i), changes...))
	}
	return all
}

func TestPreFlight(t *testing.T) {
	refusals := func(n int, ago time.Duration) []client.Object {
		var all []client.Object
		for i := range n {
			all = append(all, bound(fmt.Sprintf("refused-%d", i), refusedFor("OutOfcpu", time.Now().Add(-ago))))
		}
		return all
	}
	critical := func(bc *framework.BindContext) { bc.Pod.Spec.PriorityClassName = "system-node-critical" }
	cases := map[string]struct {
		reason  string
		objects func() []client.Object
		change  func(bc *framework.BindContext)
		next    framework.Next
		waits   string
		want    string
	}{
		"Empty": {reason: "the pod needs a slot", objects: func() []client.Object { return nil }, next: framework.Take},
		"Free":  {reason: "the pod needs the last slot", objects: func() []client.Object { return pods(1) }, next: framework.Take},
		"Full":  {reason: "the bind will wait", objects: func() []client.Object { return pods(2) }, next: framework.Run, waits: "pods on the node to start (limit 2)"},
		"Old": {reason: "pods that do not start in time do not count", objects: func() []client.Object {
			return []client.Object{boundSince("a", time.Now().Add(-5*time.Minute)), bound("b")}
		}, next: framework.Take},
		"Critical": {reason: "the pod needs no slot", objects: func() []client.Object { return append(pods(2), refusals(3, 0)...) }, change: critical, next: framework.Skip},
		"Refusing": {
			reason: "the node refuses pods", objects: func() []client.Object { return refusals(3, 0) }, next: framework.Run,
			want: "Node node-a: the kubelet refused pods of the namespace default; no pod of the namespace is bound to the node before 2000-01-01T00:05:00Z; " +
				"choose another node, and check the events of the node",
		},
		"Trying": {reason: "one pod may try the node, which PreBind ensures", objects: func() []client.Object { return refusals(3, 5*time.Minute) }, next: framework.Run},
		"Tried": {
			reason: "another pod tries the node", objects: func() []client.Object { return append(refusals(3, 5*time.Minute), pods(1)...) }, next: framework.Run,
			want: "Node node-a: the kubelet refused pods of the namespace default, and another one tries the node now; choose another node",
		},
		"TriedByOther": {
			reason: "pods of another namespace do not matter", next: framework.Run,
			objects: func() []client.Object { return append(refusals(3, 5*time.Minute), pods(1, inNamespace("other"))...) },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, small(2), tc.objects()...)
				bc := bind("web")
				if tc.change != nil {
					tc.change(bc)
				}
				next, err := plugintest.PreFlight(t.Context(), w.h, w, bc)
				assert.Equal(t, tc.next, next, tc.reason)
				if tc.want != "" {
					require.EqualError(t, err, tc.want, tc.reason)
					assert.True(t, framework.IsKind(err, framework.KindRefuse))
					return
				}
				require.NoError(t, err, tc.reason)
				if tc.waits == "" {
					assert.Empty(t, bc.ExpectedWaits(), tc.reason)
				} else if assert.Len(t, bc.ExpectedWaits(), 1, tc.reason) {
					assert.Equal(t, tc.waits, bc.ExpectedWaits()[0].For)
				}
			})
		})
	}
}

func (w *world) start(ctx context.Context, bc *framework.BindContext) *plugintest.Running {
	return plugintest.Start(func() error { return w.PreBind(ctx, bc) })
}

func assertWaits(t *testing.T, reason string, all ...*plugintest.Running) {
	t.Helper()
	for _, r := range all {
		ended, err := r.Ended()
		require.False(t, ended, "%s: %v", reason, err)
	}
}

func assertTaken(t *testing.T, reason string, all ...*plugintest.Running) {
	t.Helper()
	for _, r := range all {
		ended, err := r.Ended()
		require.True(t, ended, reason)
		require.NoError(t, err, reason)
	}
}

// The client of a bind can be between two calls, or have called another replica in the meantime.
func TestPreBind_SkipsBindsWhoseClientIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(1), bound("old"))
		first, second, third := bind("first"), bind("second"), bind("third")
		call := func(bc *framework.BindContext, change func()) {
			change()
			w.h.Changes.Changed(bc.Calls())
			synctest.Wait()
		}
		for _, bc := range []*framework.BindContext{first, second, third} {
			bc.CallBegan()
		}
		one := w.start(t.Context(), first)
		assertWaits(t, "the node is full", one)
		two := w.start(t.Context(), second)
		assertWaits(t, "the node is full", one, two)
		call(first, first.CallEnded)
		w.server.Put(bound("old", inPhase(corev1.PodRunning)))
		assertTaken(t, "it is the first whose client waits", two)
		assertWaits(t, "its client is away", one)

		w.server.Put(bound("second"))
		w.server.Put(bound("second", inPhase(corev1.PodRunning)))
		assertWaits(t, "its client is still away", one)
		reserved, queued := w.slots.count()
		assert.Equal(t, []int{0, 1}, []int{reserved, queued}, "the slot is free")
		assert.True(t, w.Take(t.Context(), third), "other binds do not wait for it")
		w.server.Put(bound("third"))
		call(first, first.CallBegan)
		assertWaits(t, "the node is full", one)
		w.server.Put(bound("third", inPhase(corev1.PodRunning)))
		assertTaken(t, "its client is there again", one)
	})
}

func TestPreBind_WaitsForSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(2), bound("old"))
		first, second, third := bind("first"), bind("second"), bind("third")
		assertTaken(t, "one slot is free", w.start(t.Context(), first))
		two := w.start(t.Context(), second)
		three := w.start(t.Context(), third)
		assertWaits(t, "the reservation of the first bind counts", two, three)
		assert.Equal(t, "pods on the node to start (limit 2)", second.ReportedWait().For)
		reserved, queued := w.slots.count()
		assert.Equal(t, []int{1, 2}, []int{reserved, queued})

		w.server.Put(bound("first"))
		assertWaits(t, "the first pod counts once, as a pod or as a reservation", two, three)
		reserved, _ = w.slots.count()
		assert.Zero(t, reserved, "the cache contains the pod")

		w.server.Put(bound("first", inPhase(corev1.PodRunning)))
		assertTaken(t, "the first pod has started", two)
		assertWaits(t, "there was one slot", three)
		require.NoError(t, w.PreBindRollBack(t.Context(), second))
		assert.Equal(t, []string{"released the slot on the node"}, second.Undone())
		assertTaken(t, "the second bind was rolled back", three)

		again := bind("third")
		assertTaken(t, "a repeated call finds its own slot", w.start(t.Context(), again))
		next, err := plugintest.PreFlight(t.Context(), w.h, w, again)
		require.NoError(t, err)
		assert.Equal(t, framework.Take, next, "the bind has a slot")
		assert.True(t, w.Take(t.Context(), again))
		require.NoError(t, w.PreBindRollBack(t.Context(), third))
		require.NoError(t, w.PreBindRollBack(t.Context(), again))
		assert.Empty(t, w.slots.nodes, "an idle node uses no memory")
	})
}

func TestPreBind_ServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(2), bound("a"), bound("b"))
		var all []*plugintest.Running
		ctx, cancel := context.WithCancelCause(t.Context())
		for i := range 8 {
			each := t.Context()
			if i == 1 {
				each = ctx
			}
			all = append(all, w.start(each, bind(fmt.Sprintf("web-%d", i))))
		}
		gone := errors.New("the pod is gone")
		cancel(gone)
		ended, err := all[1].Ended()
		require.True(t, ended)
		require.ErrorIs(t, err, gone)
		w.server.Remove(bound("a"))
		assertTaken(t, "the first bind is at the head of the queue", all[0])
		assertWaits(t, "there was one slot", all[2:]...)
		w.server.Remove(bound("b"))
		assertTaken(t, "the second bind has left", all[2])
		assertWaits(t, "there was one slot", all[3:]...)
		for i := 3; i < 8; i++ {
			require.NoError(t, w.PreBindRollBack(t.Context(), bind(fmt.Sprintf("web-%d", []int{3: 0, 4: 2, 5: 3, 6: 4, 7: 5}[i]))))
			assertTaken(t, "each slot goes to the next bind", all[i])
			assertWaits(t, "there was one slot", all[i+1:]...)
		}
	})
}

func TestPreBind_Ends(t *testing.T) {
	cases := map[string]struct {
		reason string
		// act happens 10 s after the start of the wait, and the wait ends after the time.
		act   func(w *world)
		after time.Duration
		kind  framework.Kind
		want  string
	}{
		"Rejected": {
			reason: "the scheduler should choose another node", after: 30 * time.Second, kind: framework.KindRefuse,
			want: "Node node-a: still waiting for pods on the node to start (limit 1) after 30s; choose another node",
		},
		"Opens": {
			reason: "the node refuses pods", act: func(w *world) {
				for i := range 3 {
					w.server.Put(bound(fmt.Sprint(i), refusedFor("OutOfcpu", time.Now())))
				}
				w.server.Put(bound("old", inPhase(corev1.PodRunning)))
			}, after: 10 * time.Second, kind: framework.KindRefuse,
			want: "Node node-a: the kubelet refused pods of the namespace default; no pod of the namespace is bound to the node before 2000-01-01T00:05:10Z; " +
				"choose another node, and check the events of the node",
		},
		"CacheBehind": {
			reason: "the API server has a newer state at the end of the wait", act: func(w *world) {
				w.mu.Lock()
				w.behind = true
				w.mu.Unlock()
				w.server.Remove(bound("old"))
			}, after: 20 * time.Second,
		},
		"TimedOut": {reason: "the other pod did not start in time", after: 20 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				since := time.Now()
				if name == "CacheBehind" || name == "TimedOut" {
					since = since.Add(-4*time.Minute - 40*time.Second)
				}
				w := newWorld(t, small(1), boundSince("old", since))
				running := w.start(t.Context(), bind("web"))
				assertWaits(t, tc.reason, running)
				began := time.Now()
				<-time.After(10 * time.Second)
				if tc.act != nil {
					tc.act(w)
				}
				<-time.After(tc.after - time.Since(began) - time.Nanosecond)
				if tc.after > 10*time.Second {
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
				assert.True(t, framework.IsKind(err, tc.kind), tc.reason)
				_, queued := w.slots.count()
				assert.Zero(t, queued)
			})
		})
	}
}

// The cache shows the pod only after its bind, or never.
func TestReservation_Ends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		args := small(1)
		args.Wait = time.Minute
		w := newWorld(t, args)
		web := bind("web")
		require.NoError(t, w.PreBind(t.Context(), web))
		w.PostBind(t.Context(), web)
		next := w.start(t.Context(), bind("next"))
		<-time.After(observeTime - time.Nanosecond)
		assertWaits(t, "the watch may be behind", next)
		<-time.After(time.Nanosecond)
		assertTaken(t, "the pod has left the phase Pending unnoticed", next)

		other := bind("next")
		other.Attempt = "another"
		require.NoError(t, w.PreBindRollBack(t.Context(), other))
		assert.Empty(t, other.Undone(), "the slot belongs to another attempt")
		reserved, _ := w.slots.count()
		assert.Equal(t, 1, reserved)
	})
}

func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		args := small(2)
		args.Wait = time.Hour
		w := newWorld(t, args, bound("old"))
		assert.True(t, w.Take(t.Context(), bind("first")), "a slot is free")
		assert.False(t, w.Take(t.Context(), bind("second")), "the reservation of the first bind counts")
		assert.True(t, w.Take(t.Context(), bind("first")), "the bind is repeated")
		second := w.start(t.Context(), bind("second"))
		assertWaits(t, "the node is full", second)
		w.server.Put(bound("old", inPhase(corev1.PodRunning)))
		assertTaken(t, "a pod has started", second)
		third := w.start(t.Context(), bind("third"))
		assert.False(t, w.Take(t.Context(), bind("fourth")), "another bind waits")
		<-time.After(observeTime - time.Second)
		assert.True(t, w.Take(t.Context(), bind("first", gen.Label("changed", "yes"))), "the bind is repeated later")
		assertWaits(t, "the first bind may still succeed", third)
		<-time.After(2 * time.Second)
		assertWaits(t, "the first timer does not end the reservation of the repeated bind", third)
		<-time.After(observeTime - 2*time.Second - time.Nanosecond)
		assertWaits(t, "the repeated bind may still succeed", third)
		<-time.After(time.Nanosecond)
		assertTaken(t, "the first bind has failed", third)

		w.h.Cached = failing{errors.New("broken")}
		assert.False(t, w.Take(t.Context(), bind("fourth")), "PreBind reports the error")
	})
}

// A pod can start between the list of the pods and the reservation.
func TestTake_NeedsACurrentView(t *testing.T) {
	s, r, now := newSlots(), rules{limit: 1, timeout: time.Minute}, time.Unix(1000, 0)
	a, b := starting{uid: "a", since: now, attempt: "1"}, starting{uid: "b", since: now, attempt: "2"}
	require.True(t, s.take(nodeA, a, nil, view{}, r, false).taken)
	v := view{seen: s.observations()}
	s.observed(nodeA, "a") // The list does not contain the pod, and the reservation has ended.
	assert.Equal(t, answer{outdated: true}, s.take(nodeA, b, nil, v, r, false))
	v = view{seen: s.observations(), pods: []corev1.Pod{*boundSince("a", now)}}
	assert.Equal(t, answer{next: now.Add(time.Minute)}, s.take(nodeA, b, nil, v, r, false))
}

// During a try, a second pod of the namespace does not get a slot, even if both pass PreFlight.
func TestPreBind_TriesOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ago := time.Now().Add(-5 * time.Minute)
		w := newWorld(t, small(5), bound("a", refusedFor("OutOfcpu", ago)), bound("b", refusedFor("OutOfcpu", ago)), bound("c", refusedFor("OutOfcpu", ago)))
		require.NoError(t, w.PreBind(t.Context(), bind("first")))
		err := w.PreBind(t.Context(), bind("second"))
		require.ErrorContains(t, err, "another one tries the node now")
		require.NoError(t, w.PreBind(t.Context(), bind("third", gen.InNamespace("other"))), "another namespace has its own breaker")

		w.server.Put(bound("first"))
		require.ErrorContains(t, w.PreBind(t.Context(), bind("second")), "another one tries the node now", "the pod starts")
		w.server.Put(bound("first", inPhase(corev1.PodRunning)))
		require.NoError(t, w.PreBind(t.Context(), bind("second")), "the pod has started")
	})
}

func TestPreBind_ReadFails(t *testing.T) {
	w := newWorld(t, small(1))
	broken := errors.New("broken")
	w.h.Live = failing{broken}
	w.h.Cached = failing{broken}
	err := w.PreBind(t.Context(), bind("web"))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "Node node-a: listing the pods that start on it")
	require.ErrorIs(t, w.SetupBindContextExtension(t.Context(), w.h.Cached, bind("web")), broken)
}

type failing struct{ error }

// Get implements client.Reader.
func (f failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return f.error
}

// List implements client.Reader.
func (f failing) List(context.Context, client.ObjectList, ...client.ListOption) error { return f.error }
