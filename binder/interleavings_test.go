// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// TestPreBind_SuccessAfterCancel: a PreBind that succeeds after its context ended is rolled back.
func TestPreBind_SuccessAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		w := newWriter("lock", calls)
		w.preBind = func(context.Context, *framework.BindContext) error {
			calls.add("write begins")
			pass(70 * time.Second) // a write in flight ignores the context
			calls.add("write done")
			return nil
		}
		s := newScene(t, w)
		d, _ := timed(t.Context(), s.Engine, theRequest())
		require.Equal(t, framework.KindWait, kindOf(d.Err))
		pass(10 * time.Minute) // no further call; abandoned after one minute
		synctest.Wait()
		assert.Contains(t, calls.all(), "lock PreBindRollBack", "the writes must be rolled back: %v", calls.all())
		assert.Empty(t, s.InFlight())
	})
}

// TestPreBind_SuccessAfterTheBudget: the same after the budget is spent.
func TestPreBind_SuccessAfterTheBudget(t *testing.T) {
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

// slowLive answers a read only after it is released.
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

// TestFollow_AllowedDuringTheRead: a call is allowed while the follower reads the pod.
func TestFollow_AllowedDuringTheRead(t *testing.T) {
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
		live.slow = 2 * time.Second // the API server takes 2 s for a read
		live.mu.Unlock()
		ch.skip = true
		pass(framework.BindSettles + time.Second) // the follower reads the live pod
		d, _ = timed(t.Context(), e, theRequest())
		allowed := d.Err == nil
		pass(10 * time.Second)
		if allowed {
			assert.NotContains(t, calls.all(), "lock PreBindRollBack", "the second call was allowed 10 s ago, and the API server has 34 s")
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

// TestRound_FailsWhileTheFirstIsInFlight: a second round fails while the API server executes the
// bind of the first.
func TestRound_FailsWhileTheFirstIsInFlight(t *testing.T) {
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
		second, _ := timed(t.Context(), s.Engine, theRequest()) // the same bind again: a client timeout, or reinvocation
		require.Equal(t, framework.KindWait, kindOf(second.Err))
		pass(time.Second)
		s.bound("node-a", first.Annotations[attemptKeyOfTests]) // 2 s after "allowed", the pod is bound by the first bind
		pass(time.Minute)
		assert.NotContains(t, calls.all(), "lock PreBindRollBack", "the pod is bound")
		assert.Contains(t, calls.all(), "lock PostBind")
	})
}

// TestRound_SupersededInTheSecond: another node is chosen during a second round.
func TestRound_SupersededInTheSecond(t *testing.T) {
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
		assert.NotContains(t, calls.all(), "rolled back on node-a", "the pod is bound")
		assert.Contains(t, calls.all(), "lock PostBind")
	})
}

// TestFollow_BoundByAnotherAttempt: another attempt bound the pod, and the mark is this one's.
func TestFollow_BoundByAnotherAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		m := &marker{writer: newWriter("lock", calls)}
		s := newScene(t, m)
		d, _ := timed(t.Context(), s.Engine, theRequest())
		require.Nil(t, d.Err)
		mine := d.Annotations[attemptKeyOfTests]
		m.marks = []framework.Mark{markOf(mine)} // this attempt took the lock from that of replica b
		s.bound("node-a", "b-1")                 // whose Binding came first
		ctx, cancel := context.WithTimeout(quiet(t), time.Hour)
		defer cancel()
		s.Sweeper(livingReplicas{}).Run(ctx)
		assert.Contains(t, calls.all(), "lock PostBind", "only this attempt releases the lock: %v", calls.all())
	})
}

// TestAttemptAnnotation_CountsForTheLimit: the annotation of the attempt is validated as well.
func TestAttemptAnnotation_CountsForTheLimit(t *testing.T) {
	w := newWriter("p", &journal{})
	s := newScene(t, w)
	pod := thePod.DeepCopy()
	pod.Annotations = map[string]string{"a": strings.Repeat("x", 256<<10-5)}
	s.podIs(pod)
	d := s.Bind(t.Context(), theRequest())
	if d.Err == nil {
		err := guardMerged(pod, theRequest().Binding, d.Annotations, d.Labels, nil)
		assert.Nil(t, err, "the merged metadata of an allowed bind is invalid")
	}
}

// TestCall_AfterCancelStartsAgain: a call that finds a canceled attempt starts another one.
func TestCall_AfterCancelStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p := &plugin{name: "slow", preBind: func(ctx context.Context, _ *framework.BindContext) error {
			if n++; n > 1 {
				return nil
			}
			<-ctx.Done()
			pass(3 * time.Second) // a write in flight
			return context.Cause(ctx)
		}}
		e := engineWith(t, p)
		timed(t.Context(), e, theRequest())
		pass(attempt.AbandonAfter - testHold + time.Second)
		d, _ := timed(t.Context(), e, theRequest())
		assert.NotEqual(t, framework.KindStale, kindOf(d.Err), "a call is waiting")
	})
}

// TestRetryAfter_GrowsWithEveryWait: ten repeats cover minutes.
func TestRetryAfter_GrowsWithEveryWait(t *testing.T) {
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
		assert.Greater(t, total, time.Minute, "ten repeats cover minutes")
	})
}

// TestAttempt_HasItsOwnID: no attempt has the ID of an earlier one.
func TestAttempt_HasItsOwnID(t *testing.T) {
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

// TestRound_AcceptedDuringTheRead: a second round that starts while the follower reads the pod runs.
func TestRound_AcceptedDuringTheRead(t *testing.T) {
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
		assert.Nil(t, d.Err, "%s after %s: the round was accepted and did not run", d.Kind(), took)
	})
}

// TestEvents_StaleRejection: a stale rejection is reported on the pod.
func TestEvents_StaleRejection(t *testing.T) {
	s := newScene(t, newWriter("p", &journal{}))
	s.podIs(thePod)
	r := theRequest()
	r.Binding.ResourceVersion = "0"
	d := s.Bind(t.Context(), r)
	require.NotNil(t, d.Err)
	assert.NotEmpty(t, s.events.all(), "every rejection is reported")
}

// TestBudget_PluginThatNeverReturns: calls get the timeout even if the plugin does not return.
func TestBudget_PluginThatNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		p := &plugin{name: "deaf", preBind: func(context.Context, *framework.BindContext) error { <-stop; return nil }}
		e := engineWith(t, p)
		defer close(stop)
		var d Decision
		for range 240 {
			d, _ = timed(t.Context(), e, theRequest())
			pass(d.RetryAfter)
		}
		assert.NotEqual(t, framework.KindWait, kindOf(d.Err), "20 minutes after the budget of 10: %v", d.Err)
	})
}
