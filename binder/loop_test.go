// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/gen"
)

// TestRun_SeesOtherPlugins: a plugin waits for something that another plugin chooses in PreBind.
func TestRun_SeesOtherPlugins(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		driver := plugin{name: "driver", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
			if w.is("volume") && !w.is("driver") {
				return framework.Verdict{Wait: framework.Wait{For: "the driver of the volume"}}, nil
			}
			return framework.Verdict{}, nil
		}}
		time.AfterFunc(3*time.Second, func() { w.set("driver") })
		began := time.Now()
		o := w.run(t.Context(), w.bind(nodeName, driver, w.writer("volume")))
		require.Nil(t, o.Err)
		assert.GreaterOrEqual(t, time.Since(began), 3*time.Second)
		assert.Equal(t, []string{"write-volume PreBind", "answer with attempt"}, w.said())
	})
}

func TestRun_RejectsWhenSettled(t *testing.T) {
	runInWorld(t, "Passes", func(t *testing.T, w *world) {
		time.AfterFunc(Settle/2, func() { w.set("fixed") })
		assert.Nil(t, w.run(t.Context(), w.bind(nodeName, w.rejecter("fixed"))).Err)
	})
	runInWorld(t, "PassesAfterAWait", func(t *testing.T, w *world) {
		time.AfterFunc(5*time.Second, func() { w.set("a") })
		time.AfterFunc(5*time.Second+Settle/2, func() { w.set("fixed") })
		strict := w.rejecter("fixed")
		late := plugin{name: "strict", world: w, decide: func(bc *framework.BindContext) (framework.Verdict, error) {
			if !w.is("a") {
				return framework.Verdict{Wait: framework.Wait{For: "a"}}, nil
			}
			return strict.PreFlight(bc)
		}}
		assert.Nil(t, w.run(t.Context(), w.bind(nodeName, late)).Err, "the cache can be behind at any time, not only at the beginning")
	})
	runInWorld(t, "Within a seatless replica", func(t *testing.T, w *world) {
		w.o.Settings.Hold, w.o.Settings.MaxHolds = time.Hour, 0
		assert.Equal(t, framework.KindRefuse, w.run(t.Context(), w.bind(nodeName, w.rejecter("fixed"))).Err.Kind, "a rejection needs no seat")
	})
}

// TestRun_WritesOncePerChange: while the cache does not show a write, it is not repeated.
func TestRun_WritesOncePerChange(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		slow := plugin{
			name: "slow", world: w,
			decide: func(bc *framework.BindContext) (framework.Verdict, error) {
				if w.is("shown") {
					assert.True(t, bc.Written)
					return framework.Verdict{}, nil
				}
				return framework.Verdict{Writes: []string{"writes"}}, nil
			},
			preBind: func(*framework.BindContext) error { return nil },
		}
		time.AfterFunc(time.Second, w.changed)
		time.AfterFunc(2*time.Second, func() { w.set("shown") })
		require.Nil(t, w.run(t.Context(), w.bind(nodeName, slow)).Err)
		assert.Equal(t, []string{"slow PreBind", "slow PreBind", "answer with attempt"}, w.said(), "once at first, and once after the change")
	})
}

// TestRun_SlowRejection: what a slow PreBind has read can be over, so its first rejection does not count.
func TestRun_SlowRejection(t *testing.T) {
	slow := func(w *world, rejects int) plugin {
		p := w.writer("a").(plugin) //nolint:errcheck,forcetypeassert // It is one.
		writes, calls := p.preBind, 0
		p.preBind = func(bc *framework.BindContext) error {
			if calls++; calls > rejects {
				return writes(bc)
			}
			time.Sleep(2 * time.Second) //nolint:forbidigo // Virtual time: the second request takes long.
			return framework.Refuse(framework.Object{}, "taken")
		}
		return p
	}
	runInWorld(t, "Passes", func(t *testing.T, w *world) {
		require.Nil(t, w.run(t.Context(), w.bind(nodeName, slow(w, 1))).Err)
		assert.Equal(t, []string{"write-a PreBind", "write-a PreBind", "answer with attempt"}, w.said())
	})
	runInWorld(t, "Stays", func(t *testing.T, w *world) {
		o := w.run(t.Context(), w.bind(nodeName, slow(w, 10)))
		require.Equal(t, framework.KindRefuse, o.Err.Kind, "a slow API server does not repeat PreBind forever")
	})
}

// TestRun_WritesUntilTheEnd: the bind ends with its budget, also if the writes of each call last until its end.
func TestRun_WritesUntilTheEnd(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.writer("a").(plugin) //nolint:errcheck,forcetypeassert // It is one.
		p.preBind = func(*framework.BindContext) error {
			pass(9 * time.Second) // The hold ends before.
			return framework.NotYet(framework.Object{}, "the list of pods")
		}
		b := w.bind(nodeName, p)
		b.budget = 30 * time.Second
		o := w.run(t.Context(), b)
		require.Equal(t, framework.KindWait, o.Err.Kind)
		assert.Contains(t, o.Err.Error(), "waiting for the list of pods (9s)")
		for range 3 {
			pass(o.RetryAfter)
			o = w.run(t.Context(), b)
		}
		assert.Contains(t, o.Err.Error(), "timed out after 30s waiting for the list of pods")
	})
}

// TestRun_StoppedAsksAtOnce: another replica continues, however long the bind has waited.
func TestRun_StoppedAsksAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		require.NoError(t, w.Stop(t.Context()))
		o := w.run(t.Context(), w.bind(nodeName, w.writer("w")))
		require.ErrorIs(t, o.Err, work.Stopped)
		assert.Equal(t, time.Second, o.RetryAfter)
	})
}

// TestRun_NextCallContinues: the hold ends, the client repeats the Binding, and the attempt is the same.
func TestRun_NextCallContinues(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.bind(nodeName, w.writer("w"), w.waiter("a"), w.waiter("b"))
		began := time.Now()
		first := w.run(t.Context(), b)
		require.NotNil(t, first.Err)
		assert.Equal(t, "wait-a: waiting for a (8s), and 1 more; retry the Binding", first.Err.Error())
		assert.Equal(t, 8*time.Second, time.Since(began))
		assert.Equal(t, w.pod.UID, w.InFlight()[0].UID)
		assert.Equal(t, time.Second, first.RetryAfter, "the next call is probably held again")
		pass(first.RetryAfter)
		w.set("a")
		w.set("b")
		second := w.run(t.Context(), b)
		require.Nil(t, second.Err)
		assert.Equal(t, first.Attempt, second.Attempt)
		assert.NotEmpty(t, second.Attempt)
		assert.Equal(t, 2, second.Calls)
		assert.Equal(t, 9*time.Second, second.Waited)
		assert.Len(t, w.fixture.said(), 1, "the same wait is reported once")
		w.bound(nodeName)
		synctest.Wait()
		assert.Equal(t, []string{"write-w PreBind", "answer with attempt", "ended bound", "write-w PostBind"}, w.said())
	})
}

// TestRun_RejectWaits: the call is rejected, and the next one continues.
func TestRun_RejectWaits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.o.Settings.Hold, w.o.Settings.RejectWaits = 2*time.Second, true
		b := w.bind(nodeName, w.writer("w"), w.waiter("a"))
		for range 3 {
			d := w.run(t.Context(), b)
			require.NotNil(t, d.Err)
			assert.Equal(t, framework.KindRefuse, d.Err.Kind)
			assert.Contains(t, d.Err.Error(), "; schedule the pod again: Prebind continues to prepare it")
			assert.Zero(t, d.RetryAfter)
			pass(30 * time.Second) // The backoff of the scheduler.
		}
		w.set("a")
		require.Nil(t, w.run(t.Context(), b).Err)
		assert.Equal(t, []string{"write-w PreBind", "answer with attempt"}, w.said())
	})
}

// TestRun_ShortHold: a rejection counts, and ends the work, also if calls are held for a shorter time than it needs.
func TestRun_ShortHold(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.o.Settings.Hold, w.o.Settings.RejectWaits = time.Second, true
		rejects := plugin{name: "r", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
			if w.is("a") {
				return framework.Verdict{}, framework.Refuse(framework.Object{}, "no")
			}
			return framework.Verdict{}, nil
		}}
		b := w.bind(nodeName, w.writer("w"), w.waiter("a"), rejects)
		d := w.run(t.Context(), b)
		require.Contains(t, d.Err.Error(), "Prebind continues to prepare it")
		w.set("a")
		d = w.run(t.Context(), b)
		assert.Equal(t, "r: no", d.Err.Error())
		synctest.Wait()
		assert.Equal(t, []string{"write-w PreBind", "write-w PreBindRollBack"}, w.said())
	})
}

func TestRun_RollsBack(t *testing.T) {
	cases := map[string]struct {
		reason string
		// after is what happens after a call that wrote "w" and waited for "a".
		after func(t *testing.T, w *world, b posted)
		// within is how long the rollback may take.
		within time.Duration
	}{
		"NotCalled": {
			reason: "the client does not repeat the Binding",
			after:  func(*testing.T, *world, posted) {}, within: work.AbandonAfter + 10*time.Second,
		},
		"OtherNode": {
			reason: "the scheduler chooses another node, and a plugin writes for it",
			after: func(t *testing.T, w *world, _ posted) {
				w.o.Settings.Hold = time.Millisecond
				w.run(t.Context(), w.bind("node-b", w.writer("other"), w.waiter("never")))
			},
			within: 2 * time.Second,
		},
		"Rejected": {
			reason: "the next call is rejected",
			after: func(t *testing.T, w *world, b posted) {
				b.plugins = []framework.Plugin{w.rejecter("never")}
				w.run(t.Context(), b)
			},
			within: 2 * time.Second,
		},
		"BudgetSpent": {
			reason: "the bind has waited for too long",
			after: func(t *testing.T, w *world, b posted) {
				b.plugins, b.budget = []framework.Plugin{w.waiter("a")}, 10*time.Second
				o := w.run(t.Context(), b)
				assert.Equal(t, framework.KindRefuse, o.Err.Kind)
				assert.Contains(t, o.Err.Error(), "timed out after 10s waiting for a")
			},
			within: 3 * time.Second,
		},
		"LeaseLost": {
			reason: "another replica may have rolled back",
			after: func(t *testing.T, w *world, b posted) {
				w.mu.Lock()
				w.term++
				w.mu.Unlock()
				w.set("a")
				w.run(t.Context(), b)
			},
			within: time.Second,
		},
		"PodGone": {
			reason: "the pod is deleted",
			after:  func(_ *testing.T, w *world, _ posted) { w.server.Put(gen.Pod("web", gen.UID("pod-2"))) },
			within: time.Second,
		},
		"AllowedNotBound": {
			reason: "the API server does not carry out the bind",
			after: func(t *testing.T, w *world, b posted) {
				w.set("a")
				require.Nil(t, w.run(t.Context(), b).Err)
			},
			within: framework.BindSettles + time.Second,
		},
		"AllowedThenRejected": {
			reason: "the API server does not carry out the bind, a later call waits, and the last one is rejected",
			after: func(t *testing.T, w *world, b posted) {
				allowThenWait(t, w, b)
				b.plugins = []framework.Plugin{w.rejecter("never")}
				w.run(t.Context(), b)
			},
			within: framework.BindSettles + time.Second,
		},
		"AllowedThenOtherNode": {
			reason: "the same, but the scheduler chooses another node",
			after: func(t *testing.T, w *world, b posted) {
				allowThenWait(t, w, b)
				w.run(t.Context(), w.bind("node-b", w.writer("other"), w.waiter("never")))
			},
			within: framework.BindSettles + time.Second,
		},
		"NodeRecreated": {
			reason: "the writes are for the earlier node",
			after: func(t *testing.T, w *world, b posted) {
				w.o.Settings.Hold = time.Millisecond
				w.server.Put(gen.Node(nodeName, gen.UID("another")))
				w.run(t.Context(), b)
			},
			within: 2 * time.Second,
		},
		"AllowedThenNodeRecreated": {
			reason: "the same, while the API server may bind the pod",
			after: func(t *testing.T, w *world, b posted) {
				allowThenWait(t, w, b)
				w.server.Put(gen.Node(nodeName, gen.UID("another")))
				w.set("a")
				for began := time.Now(); time.Since(began) < framework.BindSettles-10*time.Second; {
					require.NotNil(t, w.run(t.Context(), b).Err, "nothing relies on the writes for the earlier node")
				}
			},
			within: framework.BindSettles + time.Second,
		},
	}
	for name, tc := range cases {
		runInWorld(t, name, func(t *testing.T, w *world) {
			b := w.bind(nodeName, w.writer("w"), w.waiter("a"))
			require.NotNil(t, w.run(t.Context(), b).Err)
			began := time.Now()
			tc.after(t, w, b)
			for !slices.Contains(w.said(), "write-w PreBindRollBack") && time.Since(began) < time.Hour {
				pass(100 * time.Millisecond)
				synctest.Wait()
			}
			assert.LessOrEqual(t, time.Since(began), tc.within, tc.reason)
			assert.NotContains(t, w.said(), "write-w PostBind")
		})
	}
}

// allowThenWait repeats an allowed bind that then waits.
func allowThenWait(t *testing.T, w *world, b posted) {
	t.Helper()
	w.set("a")
	require.Nil(t, w.run(t.Context(), b).Err)
	w.unset("a")
	require.Equal(t, framework.KindWait, w.run(t.Context(), b).Err.Kind)
}

// TestRun_LeaseLost: the event comes while the replica does not hold its lease for a moment.
func TestRun_LeaseLost(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.o.Settings.Hold = 25 * time.Second
		b := w.bind(nodeName, w.writer("w"), w.waiter("a"))
		began := time.Now()
		lease := func(lost bool, term int64) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lost, w.term = lost, term
		}
		time.AfterFunc(70*time.Second, func() { lease(true, 0); w.set("a") })
		time.AfterFunc(73*time.Second, func() { lease(false, 1) })
		for d := w.run(t.Context(), b); d.Err != nil; d = w.run(t.Context(), b) {
			require.Equal(t, framework.KindWait, d.Err.Kind)
			pass(d.RetryAfter)
		}
		assert.LessOrEqual(t, time.Since(began), 75*time.Second)
		assert.Contains(t, w.said(), "write-w PreBindRollBack", "other replicas can have rolled back the writes of the first term")
	})
}

// TestRun_RejectedOther: a rejected call of another client does not restart the budget of a bind that waits.
func TestRun_RejectedOther(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.o.Settings.Hold = 5 * time.Second
		b, other := w.bind(nodeName, w.waiter("never")), w.bind(nodeName, w.rejecter("never"))
		b.budget = 12 * time.Second
		began := time.Now()
		time.AfterFunc(7*time.Second, func() { w.run(t.Context(), other) }) // During the second call.
		for range 2 {
			d := w.run(t.Context(), b)
			require.Equal(t, framework.KindWait, d.Err.Kind)
			pass(d.RetryAfter)
		}
		assert.Contains(t, w.run(t.Context(), b).Err.Error(), "timed out after 12s")
		assert.LessOrEqual(t, time.Since(began), 13*time.Second)
	})
}

// TestRun_TwoUsers: two clients post the same Binding. Each call decides for itself, and the plugins
// write under one attempt.
func TestRun_TwoUsers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		one := w.bind(nodeName, w.writer("w"), w.waiter("a"))
		two := w.bind(nodeName, w.writer("w"), w.waiter("a"), plugin{name: "who", world: w, decide: func(bc *framework.BindContext) (framework.Verdict, error) {
			if bc.User.Username == "mallory" {
				return framework.Verdict{}, framework.Refuse(framework.Object{}, "not you")
			}
			return framework.Verdict{}, nil
		}})
		two.user = "mallory"
		var outcomes [2]Decision
		var calls sync.WaitGroup
		calls.Go(func() { outcomes[0] = w.run(t.Context(), one) })
		calls.Go(func() { outcomes[1] = w.run(t.Context(), two) })
		time.AfterFunc(3*time.Second, func() { w.set("a") })
		calls.Wait()
		assert.Nil(t, outcomes[0].Err)
		require.NotNil(t, outcomes[1].Err)
		assert.Equal(t, framework.KindRefuse, outcomes[1].Err.Kind)
		assert.NotContains(t, w.said(), "write-w PreBindRollBack", "the rejection of one user does not end the bind of another")
	})
}

// TestRun_TwoNodes: two schedulers wait for one pod on two nodes. If each call ended the work of the other, they would write and roll back again and
// again.
func TestRun_TwoNodes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.o.Settings.Hold = 10 * time.Second
		var calls sync.WaitGroup
		for _, b := range []posted{w.bind(nodeName, w.writer("x"), w.waiter("never")), w.bind("node-b", w.writer("y"), w.waiter("never"))} {
			calls.Go(func() { assert.Equal(t, framework.KindWait, w.run(t.Context(), b).Err.Kind) })
		}
		calls.Wait()
		assert.ElementsMatch(t, []string{"write-x PreBind", "write-y PreBind"}, w.said())
	})
}

func TestRetryAfter(t *testing.T) {
	cases := map[string]struct {
		waited, want time.Duration
	}{
		"First": {want: minRetry},
		"Half":  {waited: 20 * time.Second, want: 10 * time.Second},
		"Most":  {waited: time.Hour, want: 30 * time.Second}, // docs/for-schedulers.md contains the longest time, with its spread.
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			after := retryAfter(tc.waited)
			assert.GreaterOrEqual(t, after, tc.want)
			assert.LessOrEqual(t, after, (tc.want + tc.want/4).Round(time.Second))
			assert.Zero(t, after%time.Second)
		})
	}
}

// TestRun_NextCallOfAllowedBind: the API server did not execute an allowed bind, and the answer named the time of its next call.
func TestRun_NextCallOfAllowedBind(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		began := time.Now()
		w.set("a")
		b := w.bind(nodeName, w.writer("w"), w.waiter("a"))
		require.Nil(t, w.run(t.Context(), b).Err)
		w.unset("a")
		w.o.Settings.MaxHolds = 0
		for time.Since(began) < 2*time.Minute {
			o := w.run(t.Context(), b)
			require.Equal(t, framework.KindWait, o.Err.Kind)
			<-time.After(o.RetryAfter)
		}
		assert.NotContains(t, w.said(), "write-w PreBindRollBack")
	})
}
