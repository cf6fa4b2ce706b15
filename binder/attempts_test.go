// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// The tests of time run in a bubble of testing/synctest. Its clock moves only when every
// goroutine in it waits.

// pass lets time pass in a bubble.
func pass(d time.Duration) { <-time.After(d) }

// timed makes a call and returns its duration.
func timed(ctx context.Context, e *Engine, r Request) (Decision, time.Duration) {
	begin := time.Now()
	d := e.Bind(ctx, r)
	return d, time.Since(begin)
}

// later makes a call in the background.
func later(ctx context.Context, e *Engine, r Request) <-chan Decision {
	answer := make(chan Decision, 1)
	go func() { answer <- e.Bind(ctx, r) }()
	return answer
}

func TestHold_EndsWithTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := engineWith(t, w)
		begin := time.Now()
		answer := later(t.Context(), e, theRequest())
		pass(2 * time.Second)
		w.release <- nil
		d := <-answer
		assert.Nil(t, d.Err)
		assert.Equal(t, 2*time.Second, time.Since(begin), "the answer is sent at once")
		synctest.Wait()
		assert.Len(t, e.InFlight(), 1, "a success is followed to its outcome")
	})
}

func TestHold_EndsByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := engineWith(t, w)
		for range 6 {
			d, took := timed(t.Context(), e, theRequest())
			require.Equal(t, framework.KindWait, kindOf(d.Err))
			assert.Equal(t, time.Second, d.RetryAfter, "no hold covers this second")
			assert.Equal(t, testHold, took, "a call is held for --hold")
			assert.Equal(t, "waiter", d.Err.Plugin)
			assert.Equal(t, claim, d.Err.Object)
			assert.Contains(t, d.Err.Error(), "the volume of the test", "the message names the object of the wait")
			pass(d.RetryAfter)
		}
		answer := later(t.Context(), e, theRequest())
		synctest.Wait()
		w.release <- nil
		assert.Nil(t, (<-answer).Err)
		assert.Equal(t, int32(1), w.preBinds.Load(), "all calls joined one attempt")
	})
}

func TestHold_NamesThePlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugin{name: "silent", preBind: func(ctx context.Context, _ *framework.BindContext) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		d := engineWith(t, p).Bind(t.Context(), theRequest())
		require.Equal(t, framework.KindWait, kindOf(d.Err))
		assert.Equal(t, "silent", d.Err.Plugin, "the plugin is named even if it does not report a wait")
		assert.NotEmpty(t, d.Err.Advice)
	})
}

// TestLongRetryAfter_KeepsTheAttempt: an attempt, or its failure, is kept until the client should
// call again.
func TestLongRetryAfter_KeepsTheAttempt(t *testing.T) {
	for name, end := range map[string]error{"Preparing": nil, "Failed": framework.Refuse(claim, "no")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWaiter()
				e := newTestEngine(t, func(o *Options) { o.Settings.Plugins, o.Settings.MaxHolds = []framework.PreBinder{w}, 0 })
				var d Decision
				for d.RetryAfter < MaxRetryAfter/2 {
					pass(d.RetryAfter)
					d = e.Bind(t.Context(), theRequest())
					require.Equal(t, framework.KindWait, kindOf(d.Err))
				}
				if end != nil {
					w.release <- end
				}
				pass(d.RetryAfter + attempt.AbandonAfter - time.Second)
				d = e.Bind(t.Context(), theRequest())
				assert.EqualValues(t, 1, w.preBinds.Load(), "the call joins the same attempt")
				assert.Equal(t, end != nil, kindOf(d.Err) == framework.KindRefuse)
			})
		})
	}
}

func TestAttempt_IsSharedByCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := engineWith(t, w)
		first, second := later(t.Context(), e, theRequest()), later(t.Context(), e, theRequest())
		synctest.Wait()
		w.release <- nil
		assert.Nil(t, (<-first).Err)
		assert.Nil(t, (<-second).Err)
		assert.Equal(t, int32(1), w.preBinds.Load(), "one PreBind for two calls")
	})
}

// TestAttempt_IsSharedAfterPreFlight: two calls that both found no attempt start only one.
func TestAttempt_IsSharedAfterPreFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checked := make(chan struct{})
		c := &checker{plugin: plugin{name: "p"}, preFlight: func(*framework.BindContext) (framework.Next, error) {
			<-checked
			return framework.Run, nil
		}}
		done := make(chan struct{})
		c.preBind = func(context.Context, *framework.BindContext) error { <-done; return nil }
		e := engineWith(t, c)
		first, second := later(t.Context(), e, theRequest()), later(t.Context(), e, theRequest())
		synctest.Wait()
		require.Equal(t, int32(2), c.preFlights.Load())
		close(checked)
		synctest.Wait()
		assert.Equal(t, int32(1), c.preBinds.Load(), "one PreBind for two calls")
		close(done)
		assert.Nil(t, (<-first).Err)
		assert.Nil(t, (<-second).Err)
	})
}

func TestAttempt_BelongsToUIDAndNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := newTestEngine(t, func(o *Options) {
			o.Settings.Plugins = []framework.PreBinder{w}
			o.Cached = holding(thePod, theNode, gen.Pod("other", gen.UID("pod-2")))
		})
		answers := []<-chan Decision{
			later(t.Context(), e, theRequest()),
			later(t.Context(), e, requestFor(gen.Binding(gen.Pod("other"), "node-a"))),
		}
		synctest.Wait()
		assert.Equal(t, int32(2), w.preBinds.Load(), "another UID is another bind; for another node see TestAttempt_Superseded")
		for range answers {
			w.release <- nil
		}
		for _, answer := range answers {
			assert.Nil(t, (<-answer).Err)
		}
	})
}

func TestDryRun_JoinsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := engineWith(t, w)
		held := later(t.Context(), e, theRequest())
		synctest.Wait()
		r := theRequest()
		r.DryRun = true
		d, took := timed(t.Context(), e, r)
		assert.Nil(t, d.Err)
		assert.Zero(t, took, "a dry run neither joins nor starts an attempt")
		w.release <- nil
		assert.Nil(t, (<-held).Err)
	})
}

func TestMaxHolds_AnswersFurtherCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		quick := gen.Pod("quick", gen.UID("pod-2"))
		e := newTestEngine(t, func(o *Options) {
			o.Settings.MaxHolds = 1
			o.Settings.Plugins = []framework.PreBinder{w}
			o.Cached = holding(thePod, quick, theNode)
		})
		held := later(t.Context(), e, theRequest())
		synctest.Wait()

		d, took := timed(t.Context(), e, requestFor(gen.Binding(quick, "node-a")))
		assert.Equal(t, framework.KindWait, kindOf(d.Err), "no seat is free")
		assert.Zero(t, took)
		assert.Equal(t, minRetryAfter, d.RetryAfter)
		synctest.Wait()
		assert.Equal(t, int32(2), w.preBinds.Load(), "its attempt has started without a seat")

		w.release <- errScripted
		w.release <- errScripted
		assert.Equal(t, framework.KindInternal, kindOf((<-held).Err))
		d = e.Bind(t.Context(), requestFor(gen.Binding(quick, "node-a")))
		assert.Equal(t, framework.KindInternal, kindOf(d.Err), "a finished round needs no seat")

		answer := later(t.Context(), e, theRequest())
		synctest.Wait()
		w.release <- nil
		assert.Nil(t, (<-answer).Err, "the call returned its seat")
	})
}

// A wait for a turn ends only during a call, so a call without a seat is held for a moment.
func TestTurn_ComesDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, turns := newWaiter(), &plugin{name: "turns"}
		var free atomic.Bool
		other := gen.Pod("other", gen.UID("pod-2"))
		e := newTestEngine(t, func(o *Options) {
			o.Settings.MaxHolds = 1
			o.Settings.Plugins = []framework.PreBinder{turns, w}
			o.Cached = holding(thePod, other, theNode)
			h := framework.Handle{Cached: o.Cached, Live: o.Live, Changes: o.Changes, Clock: o.Clock}
			turns.preBind = func(ctx context.Context, bc *framework.BindContext) error {
				return framework.Await(ctx, h, bc, func(context.Context, framework.Reader) (framework.Waiting, error) {
					if bc.Pod.Name != other.Name || free.Load() && !bc.Away() {
						return framework.Waiting{}, nil
					}
					return framework.Waiting{For: "its turn", Turn: true}, nil
				}, bc.Calls())
			}
		})
		held := later(t.Context(), e, theRequest())
		synctest.Wait()
		r := requestFor(gen.Binding(other, "node-a"))
		d := e.Bind(t.Context(), r)
		require.Equal(t, framework.KindWait, kindOf(d.Err), "no seat is free")
		synctest.Wait()
		d, took := timed(t.Context(), e, r)
		assert.ErrorContains(t, d.Err, "waiting for its turn")
		assert.Equal(t, glance, took, "its turn could come")
		free.Store(true)
		<-time.After(time.Second)
		require.Equal(t, int32(1), w.preBinds.Load(), "its client is away")
		answer := later(t.Context(), e, r)
		synctest.Wait()
		require.Equal(t, int32(2), w.preBinds.Load(), "its client calls")
		w.release <- nil
		w.release <- nil
		assert.Nil(t, (<-answer).Err, "the call is still there")
		assert.Nil(t, (<-held).Err)
	})
}

func TestAttempt_OutlivesTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := engineWith(t, w)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		d, took := timed(ctx, e, theRequest())
		assert.Equal(t, framework.KindWait, kindOf(d.Err))
		assert.Equal(t, 3*time.Second, took, "the call's own deadline ends the hold")

		answer := later(t.Context(), e, theRequest())
		synctest.Wait()
		w.release <- nil
		assert.Nil(t, (<-answer).Err)
		assert.Equal(t, int32(1), w.preBinds.Load(), "the attempt outlives the call")
	})
}

func TestFailure_IsKeptForTheClient(t *testing.T) {
	refusal := framework.Refuse(claim, "no").Advise("elsewhere")
	cases := map[string]struct {
		reason string
		// away is the time from the failure to the next call.
		away time.Duration
		want framework.Kind
		// preBinds is the number of PreBinds after the second call.
		preBinds int32
	}{
		"Kept":      {reason: "the next call receives the failure", away: attempt.KeepFailure - time.Second, want: framework.KindRefuse, preBinds: 1},
		"Forgotten": {reason: "a late call starts another attempt", away: time.Second + attempt.KeepFailure + time.Second, preBinds: 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWaiter()
				e := engineWith(t, w)
				d := e.Bind(t.Context(), theRequest())
				require.Equal(t, framework.KindWait, kindOf(d.Err))
				w.release <- refusal
				pass(tc.away)

				answer := later(t.Context(), e, theRequest())
				synctest.Wait()
				assert.Equal(t, tc.preBinds, w.preBinds.Load(), tc.reason)
				if tc.want == "" {
					w.release <- nil
				}
				d = <-answer
				assert.Equal(t, tc.want, kindOf(d.Err), tc.reason)
				if tc.want == "" {
					return
				}
				assert.Equal(t, "waiter", d.Err.Plugin)
				assert.Equal(t, int32(1), w.rollBacks.Load())

				answer = later(t.Context(), e, theRequest())
				synctest.Wait()
				assert.Equal(t, int32(2), w.preBinds.Load(), "a failure is returned once")
				w.release <- nil
				assert.Nil(t, (<-answer).Err)
			})
		})
	}
}

// TestAttempt_EndsWithItsPod: neither a wait nor a kept failure outlives the pod.
func TestAttempt_EndsWithItsPod(t *testing.T) {
	terminating := thePod.DeepCopy()
	terminating.DeletionTimestamp = new(metav1.Now())
	cases := map[string]struct {
		reason string
		// fails makes PreBind fail before the pod ends.
		fails bool
		pods  []client.Object
	}{
		"WaitsAndGone":        {reason: "a wait ends with the pod", pods: nil},
		"WaitsAndTerminating": {reason: "a wait ends when the pod is deleted", pods: []client.Object{terminating}},
		"FailedAndGone":       {reason: "no client asks for the failure", fails: true, pods: nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, cached, live, changes := newWaiter(), holding(thePod, theNode), holding(thePod, theNode), framework.NewHub()
				e := newTestEngine(t, func(o *Options) {
					o.Cached, o.Live, o.Changes, o.Settings.Plugins = cached, live, changes, []framework.PreBinder{w}
				})
				require.Equal(t, framework.KindWait, kindOf(e.Bind(t.Context(), theRequest()).Err))
				if tc.fails {
					w.release <- framework.Refuse(claim, "no").Advise("elsewhere")
				}
				synctest.Wait()
				require.Len(t, e.InFlight(), 1)

				began := time.Now()
				cached.set(append(tc.pods, theNode)...)
				live.set(append(tc.pods, theNode)...)
				changes.Changed(framework.RefTo(&corev1.Pod{}, thePod.Namespace, thePod.Name))
				synctest.Wait()
				assert.Empty(t, e.InFlight(), tc.reason)
				assert.Equal(t, int32(1), w.rollBacks.Load(), "the writes are rolled back once")
				assert.Zero(t, time.Since(began), "at once")
			})
		})
	}
}

// TestFailure_TimerOfAnOldOne: the timer that drops a failure does not end a later attempt.
func TestFailure_TimerOfAnOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := engineWith(t, w)
		answer := later(t.Context(), e, theRequest())
		synctest.Wait()
		w.release <- errScripted
		require.ErrorIs(t, (<-answer).Err, errScripted)

		require.Equal(t, framework.KindWait, kindOf(e.Bind(t.Context(), theRequest()).Err))
		pass(attempt.KeepFailure / 2)
		require.Equal(t, framework.KindWait, kindOf(e.Bind(t.Context(), theRequest()).Err), "it continues while calls arrive")
		pass(attempt.KeepFailure / 2)
		answer = later(t.Context(), e, theRequest())
		synctest.Wait()
		assert.Equal(t, int32(2), w.preBinds.Load(), "the second attempt is still in progress")
		w.release <- nil
		assert.Nil(t, (<-answer).Err)
	})
}

func TestFailure_ReachesEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := engineWith(t, w)
		first, second := later(t.Context(), e, theRequest()), later(t.Context(), e, theRequest())
		synctest.Wait()
		w.release <- framework.Wait(claim, "another writer was faster")
		for _, answer := range []<-chan Decision{first, second} {
			d := <-answer
			assert.Equal(t, framework.KindWait, kindOf(d.Err))
			assert.GreaterOrEqual(t, d.RetryAfter, time.Second, "a wait has a Retry-After")
		}
	})
}

func TestBudget_Spent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := newTestEngine(t, func(o *Options) {
			o.Settings.Plugins, o.Settings.PreBindTimeout = []framework.PreBinder{w}, 30*time.Second
		})
		require.Equal(t, framework.KindWait, kindOf(e.Bind(t.Context(), theRequest()).Err))
		pass(30 * time.Second)
		d := e.Bind(t.Context(), theRequest())
		require.Equal(t, framework.KindRefuse, kindOf(d.Err))
		require.ErrorIs(t, d.Err, attempt.ErrBudgetSpent)
		assert.Equal(t, claim, d.Err.Object)
		assert.Equal(t, "waiter", d.Err.Plugin)
		assert.Contains(t, d.Err.Error(), "the volume of the test", "the message names the object of the wait")
		assert.Contains(t, d.Err.Advice, "--prebind-timeout", "the message names the flag")
		assert.Equal(t, int32(1), w.rollBacks.Load())
	})
}

func TestDrain_EndsHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		e := engineWith(t, w)
		held := later(t.Context(), e, theRequest())
		synctest.Wait()
		begin := time.Now()
		e.Drain()
		d := <-held
		assert.Equal(t, framework.KindWait, kindOf(d.Err), "the call must be repeated")
		assert.Zero(t, time.Since(begin), "at once")
		d, took := timed(t.Context(), e, theRequest())
		assert.Equal(t, framework.KindWait, kindOf(d.Err), "a later call must be repeated, too")
		assert.Zero(t, took)
	})
}
