// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// A PreBind that ends well although its context was ended (superseded, abandoned, budget).
func TestSuccessAfterGivingUpIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		w := newWriter("lock", calls)
		w.preBind = func(context.Context, *framework.BindContext) error {
			calls.add("write begins")
			pass(70 * time.Second) // an API write that is under way does not look at the context
			calls.add("write done")
			return nil
		}
		s := newScene(t, w)
		d, _ := timed(t.Context(), s.Engine, theRequest())
		require.Equal(t, framework.KindWait, kindOf(d.Err))
		pass(10 * time.Minute) // nobody calls again; abandoned after 1 minute
		synctest.Wait()
		assert.Contains(t, calls.all(), "lock PreBindRollBack", "what was written must be undone: %v", calls.all())
		assert.Empty(t, s.attempts.byKey)
	})
}

// Same by the budget; the call that waits is in a loop of new attempts.
func TestSuccessAfterTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		w := newWriter("lock", calls)
		w.preBind = func(_ context.Context, bc *framework.BindContext) error {
			calls.add("write " + bc.Attempt)
			pass(2 * time.Second)
			return nil
		}
		s := newScene(t, w)
		r := theRequest()
		r.Binding.Annotations = map[string]string{"binder.prebind.dev/timeout": "1s"}
		for range 5 {
			_, _ = timed(t.Context(), s.Engine, r)
			pass(time.Second)
		}
		pass(5 * time.Minute)
		assert.Contains(t, calls.all(), "lock PreBindRollBack")
	})
}

// slowLive answers a read only after it was let.
type slowLive struct {
	*store
	mu   sync.Mutex
	slow time.Duration
}

func (s *slowLive) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	err := s.store.Get(ctx, key, into, o...)
	s.mu.Lock()
	d := s.slow
	s.mu.Unlock()
	if d > 0 {
		pass(d)
	}
	return err
}

// The follower judges by an allowedAt that a call renewed while it was reading.
func TestAllowedWhileTheFollowerReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		ch := &skipper{writer: newWriter("lock", calls)}
		live := &slowLive{store: holding(thePod, theNode)}
		e := newTestEngine(t, func(o *Options) {
			o.Live, o.Settings.Plugins = live, []framework.PreBinder{ch}
		})
		d, _ := timed(t.Context(), e, theRequest())
		require.Nil(t, d.Err)
		live.mu.Lock()
		live.slow = 2 * time.Second // an API server that takes 2 s for a read
		live.mu.Unlock()
		ch.skip = true
		pass(framework.BindSettles + time.Second) // the follower reads the live pod now
		d, _ = timed(t.Context(), e, theRequest())
		allowed := d.Err == nil
		pass(10 * time.Second)
		if allowed {
			assert.NotContains(t, calls.all(), "lock PreBindRollBack", "the second call was told to go ahead 10 s ago, the API server has 34 s")
		}
	})
}

type skipper struct {
	*writer
	skip bool
}

func (s *skipper) PreFlight(*framework.BindContext) (framework.Next, error) {
	if s.skip {
		return framework.Skip, nil
	}
	return framework.Run, nil
}

// A second round fails while the API server is still at the bind of the first.
func TestSecondRoundFailsWhileTheFirstIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		w := newWriter("lock", calls)
		n := 0
		w.preBind = func(context.Context, *framework.BindContext) error {
			if n++; n == 2 {
				return framework.FromAPI(framework.Object{Kind: "Node", Name: "node-a"}, "reading it", context.DeadlineExceeded)
			}
			return nil
		}
		s := newScene(t, w)
		first, _ := timed(t.Context(), s.Engine, theRequest())
		require.Nil(t, first.Err)
		pass(time.Second)
		second, _ := timed(t.Context(), s.Engine, theRequest()) // the same bind again: client's timeout, or IfNeeded
		require.Equal(t, framework.KindWait, kindOf(second.Err))
		pass(time.Second)
		s.bound("node-a", first.Annotations[attemptKeyOfTests]) // 2 s after "allowed", the first bind comes about
		pass(time.Minute)
		assert.NotContains(t, calls.all(), "lock PreBindRollBack", "the bind came about")
		assert.Contains(t, calls.all(), "lock PostBind")
	})
}

// Superseded in a second round.
func TestSupersededSecondRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		w := newWriter("lock", calls)
		w.rollBack = func(_ context.Context, bc *framework.BindContext) error {
			calls.add("rolled back on " + bc.Node.Name)
			return nil
		}
		n := 0
		w.preBind = func(ctx context.Context, _ *framework.BindContext) error {
			if n++; n == 2 {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
		s := newScene(t, w)
		nodeB := gen.Node("node-b")
		s.cached.set(thePod, theNode, nodeB)
		first, _ := timed(t.Context(), s.Engine, theRequest())
		require.Nil(t, first.Err)
		held := later(t.Context(), s.Engine, theRequest())
		synctest.Wait()
		_, _ = timed(t.Context(), s.Engine, requestFor(gen.Binding(thePod, "node-b", gen.UID("pod-1"))))
		<-held
		pass(time.Second)
		s.bound("node-a", first.Annotations[attemptKeyOfTests])
		pass(time.Second)
		assert.NotContains(t, calls.all(), "rolled back on node-a", "the bind came about")
		assert.Contains(t, calls.all(), "lock PostBind")
	})
}

type switchable struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (*switchable) Observe(ctx context.Context) { <-ctx.Done() }

func (l *switchable) Living(context.Context) (map[string]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := map[string]bool{}
	for k := range l.ids {
		c[k] = true
	}
	return c, nil
}

// The grace counts from when the mark was first seen, not from when its replica ended.
func TestGraceCountsFromTheEndOfTheReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		m := &marker{writer: newWriter("p", calls), marks: []framework.Mark{markOf("b-1")}}
		living := &switchable{ids: map[string]bool{"b": true}}
		s := newScene(t, m)
		s.podIs(thePod)
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan struct{})
		go func() { defer close(done); NewSweeper(s.Engine, living).Run(ctx) }()
		pass(2 * time.Minute) // it waits for a volume, say; and then allows the bind, and ends
		living.mu.Lock()
		delete(living.ids, "b")
		living.mu.Unlock()
		pass(20 * time.Second)
		assert.Empty(t, calls.all(), "the API server may still be at the bind that was allowed, or the call be repeated elsewhere")
		cancel()
		<-done
	})
}

// Bound by another attempt, while this one's mark is what stands.
func TestBoundByOtherIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		m := &marker{writer: newWriter("lock", calls)}
		s := newScene(t, m)
		d, _ := timed(t.Context(), s.Engine, theRequest())
		require.Nil(t, d.Err)
		mine := d.Annotations[attemptKeyOfTests]
		m.marks = []framework.Mark{markOf(mine)} // this attempt took the lock over from replica b's
		s.bound("node-a", "b-1")                 // whose Binding came first
		ctx, cancel := context.WithTimeout(quiet(t), time.Hour)
		defer cancel()
		NewSweeper(s.Engine, livingReplicas{}).Run(ctx)
		assert.Contains(t, calls.all(), "lock PostBind", "nobody will ever release the lock while this replica lives: %v", calls.all())
	})
}

// A panic in Marks.
type panicking struct{ *writer }

func (panicking) Marks(context.Context) ([]framework.Mark, error) { panic("a bug in Marks") }

func TestMarksPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, panicking{newWriter("p", &journal{})})
		ctx, cancel := context.WithTimeout(quiet(t), time.Second)
		defer cancel()
		assert.NotPanics(t, func() { NewSweeper(s.Engine, livingReplicas{}).Run(ctx) })
	})
}

// The attempt's own annotation is not validated with the rest.
func TestAttemptAnnotationIsWithinTheLimit(t *testing.T) {
	w := newWriter("p", &journal{})
	s := newScene(t, w)
	pod := thePod.DeepCopy()
	pod.Annotations = map[string]string{"a": strings.Repeat("x", 256<<10-5)}
	s.podIs(pod)
	d := s.Bind(t.Context(), theRequest())
	if d.Err == nil {
		err := guardMerged(pod, theRequest().Binding, d.Annotations, d.Labels, nil)
		assert.Nil(t, err, "allowed, and yet what the pod will carry is not valid")
	}
}

// Known grows when anything always fails.
type stream struct {
	*writer
	n int
}

func (m *stream) Marks(context.Context) ([]framework.Mark, error) {
	m.n++
	return []framework.Mark{{Pod: types.NamespacedName{Namespace: "default", Name: "p"}, PodUID: "u", Node: "n", Attempt: "here-" + strings.Repeat("x", m.n)}}, errors.New("one of the objects cannot be read")
}

func TestOrphansArePruned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, &stream{writer: newWriter("p", &journal{})})
		ctx, cancel := context.WithTimeout(quiet(t), time.Hour)
		defer cancel()
		sw := NewSweeper(s.Engine, livingReplicas{})
		sw.Run(ctx)
		assert.Less(t, len(sw.orphans), 10)
	})
}

// A call that joins an attempt which was given up but has not ended yet.
func TestCallAfterGivingUpBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := &plugin{name: "slow", preBind: func(ctx context.Context, _ *framework.BindContext) error {
			if n++; n > 1 {
				return nil
			}
			<-ctx.Done()
			pass(3 * time.Second) // a write under way
			return context.Cause(ctx)
		}}
		e := engineWith(t, p)
		timed(t.Context(), e, theRequest())
		pass(abandonAfter - testHold + time.Second)
		d, _ := timed(t.Context(), e, theRequest())
		assert.NotEqual(t, framework.KindStale, kindOf(d.Err), "somebody is asking right now")
	})
}

// A wait that came between two calls costs the client one of its ten; RetryAfter never grows.
func TestRetryAfterGrowsForEveryWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &checker{plugin: plugin{name: "p"}, preFlight: func(*framework.BindContext) (framework.Next, error) {
			return framework.Run, framework.Wait(claim, "the API server is slow")
		}}
		e := engineWith(t, c)
		var total time.Duration
		for range 10 {
			d, took := timed(t.Context(), e, theRequest())
			require.Equal(t, framework.KindWait, kindOf(d.Err))
			total += took + d.RetryAfter
			pass(d.RetryAfter)
		}
		assert.Greater(t, total, time.Minute, "ten repeats span minutes")
	})
}

// An attempt with the ID of an earlier one.
func TestEveryAttemptHasItsOwnID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		ch := &checker{plugin: plugin{name: "p"}}
		ch.preBind = func(_ context.Context, bc *framework.BindContext) error { ids = append(ids, bc.Attempt); return nil }
		n := 0
		ch.preFlight = func(*framework.BindContext) (framework.Next, error) {
			if n++; n == 2 {
				pass(2 * time.Second) // reads
			}
			return framework.Run, nil
		}
		live := holding(thePod, theNode)
		e := newTestEngine(t, func(o *Options) { o.Live, o.Settings.Plugins = live, []framework.PreBinder{ch} })
		timed(t.Context(), e, theRequest())
		pass(framework.BindSettles - time.Second)
		d, _ := timed(t.Context(), e, theRequest())
		require.Nil(t, d.Err)
		require.Len(t, ids, 2)
		assert.Equal(t, int32(1), ch.rollBacks.Load())
		assert.NotEqual(t, ids[0], ids[1], "the first was rolled back, the second is another attempt")
	})
}

// A second round that is accepted while the follower has made up its mind is never run.
func TestRoundWhileTheFollowerReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter("lock", &journal{})
		live := &slowLive{store: holding(thePod, theNode)}
		e := newTestEngine(t, func(o *Options) { o.Live, o.Settings.Plugins = live, []framework.PreBinder{w} })
		d, _ := timed(t.Context(), e, theRequest())
		require.Nil(t, d.Err)
		live.mu.Lock()
		live.slow = 2 * time.Second
		live.mu.Unlock()
		pass(framework.BindSettles + time.Second)
		d, took := timed(t.Context(), e, theRequest())
		assert.Nil(t, d.Err, "%s after %s: the round was accepted and nobody ran it", d.Kind(), took)
	})
}

// No event for a stale refusal.
func TestStaleRefusalIsTold(t *testing.T) {
	s := newScene(t, newWriter("p", &journal{}))
	gated := thePod.DeepCopy()
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	s.podIs(gated)
	d := s.Bind(t.Context(), theRequest())
	require.NotNil(t, d.Err)
	assert.NotEmpty(t, s.events.all(), "no pod is refused silently")
}

// A plugin that never returns keeps a call's answer at 429 beyond its budget.
func TestBudgetOfADeafPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		p := &plugin{name: "deaf", preBind: func(context.Context, *framework.BindContext) error { <-stop; return nil }}
		e := engineWith(t, p)
		defer close(stop)
		var d Decision
		for range 60 {
			d, _ = timed(t.Context(), e, theRequest())
			pass(d.RetryAfter)
		}
		assert.NotEqual(t, framework.KindWait, kindOf(d.Err), "20 minutes after the budget of 10: %v", d.Err)
	})
}

// A Binding for another pod of that name is refused, and nothing is written about it.
func TestOtherPodsRefusalIsNotTold(t *testing.T) {
	s := newScene(t, newWriter("p", &journal{}))
	s.podIs(thePod)
	d := s.Bind(t.Context(), requestFor(gen.Binding(thePod, "node-a", gen.UID("pod-0"))))
	require.NotNil(t, d.Err)
	assert.Equal(t, framework.KindStale, d.Err.Kind)
	assert.Empty(t, s.events.all())
}
