// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

// world is a replica, a pod and its nodes. Its state is guarded by mu.
type world struct {
	*Engine
	unrecorded
	mu      sync.Mutex
	pod     *corev1.Pod
	facts   map[string]bool
	log     []string
	term    int64
	held    bool
	failing int // PreBindRollBack fails that often.
	// answering is called when the answer is built.
	answering func()
}

const nodeName = "node-a"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{pod: gen.Pod("web", gen.UID("u1")), facts: map[string]bool{}, held: true, answering: func() {}}
	chain := mutation.NewChain([]mutators.Mutator{w}, nil)
	var err error
	w.Engine, err = New(Options{
		Cached: func(string) framework.Reader { return w }, Live: w, Replica: "r", Changes: notify.NewHub(), Events: w, Recorder: w, Clock: clock.RealClock{},
		Term: func() (int64, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.term, w.held
		},
		Settings: Settings{
			Mode: ModeEnforce, Mutators: chain, Hold: 8 * time.Second, MaxHolds: 100, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: time.Hour,
		},
	})
	require.NoError(t, err)
	w.jitter = func() float64 { return 0 }
	return w
}

func (w *world) say(what string, more ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range more {
		switch m := m.(type) {
		case string:
			what += " " + m
		case bool:
			what += map[bool]string{true: " yes", false: " no"}[m]
		}
	}
	w.log = append(w.log, what)
}

func (w *world) said() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

func (w *world) is(fact string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.facts[fact]
}

// set changes a fact of the cache, and wakes binds.
func (w *world) set(fact string) {
	w.mu.Lock()
	w.facts[fact] = true
	w.mu.Unlock()
	w.changed()
}

func (w *world) changed() { w.o.Changes.Wake(w.live()) }

// bound makes the pod bound to the node.
func (w *world) bound(node string) {
	w.mu.Lock()
	w.pod = w.pod.DeepCopy()
	w.pod.Spec.NodeName = node
	w.mu.Unlock()
	w.changed()
}

func (w *world) live() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// Get implements client.Reader for the cache and the API server.
func (w *world) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Pod:
		w.live().DeepCopyInto(into)
	case *corev1.Node:
		gen.Node(key.Name).DeepCopyInto(into)
	}
	return nil
}

// List implements client.Reader.
func (*world) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// Eventf implements events.EventRecorder.
func (*world) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// AttemptEnded implements Recorder.
func (w *world) AttemptEnded(outcome string) { w.say("ended", outcome == work.Bound) }

// Name implements mutators.Mutator.
func (*world) Name() string { return "world" }

// Mutate implements mutators.Mutator.
func (w *world) Mutate(in mutators.Input) (mutators.Output, error) {
	w.answering()
	w.say("answer", map[bool]string{true: "with attempt"}[in.Bind.Attempt != ""])
	return mutators.Output{}, nil
}

// posted is a call for the pod.
type posted struct {
	node    string
	plugins []framework.Plugin
	budget  time.Duration
	user    string
	dryRun  bool
}

func (w *world) bind(node string, plugins ...framework.Plugin) posted {
	return posted{node: node, plugins: plugins, budget: 10 * time.Minute}
}

// run posts the Binding.
func (w *world) run(ctx context.Context, p posted) Decision {
	pod, settings := w.live(), w.o.Settings
	settings.Plugins, settings.PreBindTimeout = p.plugins, p.budget
	c := &call{
		Engine: w.Engine, settings: settings, began: time.Now(),
		Request: Request{
			Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, Binding: gen.Binding(pod, p.node),
			User: authenticationv1.UserInfo{Username: p.user}, DryRun: p.dryRun,
		},
	}
	d := c.run(ctx)
	if p.dryRun {
		d = c.explained(d)
	}
	return d
}

// plugin is a PreBinder that is made of functions.
type plugin struct {
	name    string
	decide  func(bc *framework.BindContext) (framework.Verdict, error)
	preBind func(bc *framework.BindContext) error
	world   *world
}

func (p plugin) Name() string { return p.name }

func (p plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) { return p.decide(bc) }

func (p plugin) PreBind(_ context.Context, bc *framework.BindContext) error {
	p.world.say(p.name, "PreBind")
	return p.preBind(bc)
}

func (p plugin) PreBindRollBack(context.Context, framework.Mark) error {
	p.world.mu.Lock()
	p.world.failing--
	fails := p.world.failing >= 0
	p.world.mu.Unlock()
	if fails {
		return errors.New("not now")
	}
	p.world.say(p.name, "PreBindRollBack")
	return nil
}

func (p plugin) PostBind(context.Context, framework.Mark) error {
	p.world.say(p.name, "PostBind")
	return nil
}

func (p plugin) Marks(context.Context) ([]framework.Mark, error) { return nil, nil }

func (p plugin) Reserve(*framework.BindContext) bool {
	p.world.say(p.name, "Reserve")
	return true
}

// waiter waits for a fact.
func (w *world) waiter(fact string) framework.Plugin {
	return plugin{name: "wait-" + fact, world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
		if w.is(fact) {
			return framework.Verdict{}, nil
		}
		return framework.Verdict{Wait: framework.Wait{For: fact}}, nil
	}}
}

// writer writes a fact, which the cache shows at once.
func (w *world) writer(fact string) framework.Plugin {
	return plugin{
		name: "write-" + fact, world: w,
		decide: func(*framework.BindContext) (framework.Verdict, error) {
			if w.is(fact) {
				return framework.Verdict{}, nil
			}
			return framework.Verdict{Writes: []string{"writes " + fact}}, nil
		},
		preBind: func(*framework.BindContext) error {
			w.set(fact)
			return nil
		},
	}
}

// in runs the test in a bubble, and stops the replica at its end.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		test(t, w)
		require.NoError(t, w.Stop(t.Context()))
	})
}

// TestRun_WaitsOverlap: two plugins that wait for ten seconds each delay the bind by ten seconds.
func TestRun_WaitsOverlap(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.o.Settings.Hold = 25 * time.Second
		time.AfterFunc(10*time.Second, func() { w.set("a") })
		time.AfterFunc(10*time.Second, func() { w.set("b") })
		began := time.Now()
		o := w.run(t.Context(), w.bind(nodeName, w.waiter("a"), w.waiter("b")))
		require.Nil(t, o.Err)
		assert.Less(t, time.Since(began), 11*time.Second)
	})
}

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
	rejecter := func(w *world) framework.Plugin {
		return plugin{name: "strict", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
			if w.is("fixed") {
				return framework.Verdict{}, nil
			}
			return framework.Verdict{}, framework.Refuse(framework.Object{}, "broken")
		}}
	}
	t.Run("Passes", func(t *testing.T) {
		inWorld(t, func(t *testing.T, w *world) {
			time.AfterFunc(Settle/2, func() { w.set("fixed") })
			assert.Nil(t, w.run(t.Context(), w.bind(nodeName, rejecter(w))).Err)
		})
	})
	t.Run("PassesAfterAWait", func(t *testing.T) {
		inWorld(t, func(t *testing.T, w *world) {
			time.AfterFunc(5*time.Second, func() { w.set("a") })
			time.AfterFunc(5*time.Second+Settle/2, func() { w.set("fixed") })
			strict := rejecter(w)
			late := plugin{name: "strict", world: w, decide: func(bc *framework.BindContext) (framework.Verdict, error) {
				if !w.is("a") {
					return framework.Verdict{Wait: framework.Wait{For: "a"}}, nil
				}
				return strict.PreFlight(bc)
			}}
			assert.Nil(t, w.run(t.Context(), w.bind(nodeName, late)).Err, "the cache can be behind at any time, not only at the beginning")
		})
	})
	t.Run("Within a seatless replica", func(t *testing.T) {
		inWorld(t, func(t *testing.T, w *world) {
			w.o.Settings.Hold, w.o.Settings.MaxHolds = time.Hour, 0
			assert.Equal(t, framework.KindRefuse, w.run(t.Context(), w.bind(nodeName, rejecter(w))).Err.Kind, "a rejection needs no seat")
		})
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

// TestRun_SlowRejection: what a slow PreBind has read can be over, so its rejection does not count.
func TestRun_SlowRejection(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		calls := 0
		slow := w.writer("a").(plugin)
		writes := slow.preBind
		slow.preBind = func(bc *framework.BindContext) error {
			if calls++; calls > 1 {
				return writes(bc)
			}
			time.Sleep(2 * time.Second) // Virtual time: the second request takes long.
			return framework.Refuse(framework.Object{}, "taken")
		}
		require.Nil(t, w.run(t.Context(), w.bind(nodeName, slow)).Err)
		assert.Equal(t, []string{"write-a PreBind", "write-a PreBind", "answer with attempt"}, w.said())
	})
}

// TestRun_LateReservesLast: no slot is held while another plugin waits.
func TestRun_LateReservesLast(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		late := plugin{name: "late", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
			return framework.Verdict{Writes: []string{"takes a slot"}, Late: true}, nil
		}}
		time.AfterFunc(time.Second, func() { w.say("ready"); w.set("a") })
		require.Nil(t, w.run(t.Context(), w.bind(nodeName, late, w.writer("b"), w.waiter("a"))).Err)
		assert.Equal(t, []string{"write-b PreBind", "ready", "late Reserve", "answer with attempt"}, w.said())
	})
}

// TestRun_NextCallContinues: the hold ends, the client repeats the Binding, and the attempt is the same.
func TestRun_NextCallContinues(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.bind(nodeName, w.writer("w"), w.waiter("a"))
		first := w.run(t.Context(), b)
		require.NotNil(t, first.Err)
		assert.Equal(t, "binder: waiting for a (8s); retry the Binding", framework.AsError("", withoutPlugin(first.Err)).Error())
		assert.Equal(t, "wait-a", first.Err.Plugin)
		assert.Equal(t, time.Second, first.RetryAfter, "the next call is probably held again")
		pass(first.RetryAfter)
		w.set("a")
		second := w.run(t.Context(), b)
		require.Nil(t, second.Err)
		assert.Equal(t, first.Attempt, second.Attempt)
		assert.NotEmpty(t, second.Attempt)
		w.bound(nodeName)
		synctest.Wait()
		assert.Equal(t, []string{"write-w PreBind", "answer with attempt", "ended yes", "write-w PostBind"}, w.said())
	})
}

func withoutPlugin(err *framework.Error) *framework.Error {
	e := *err
	e.Plugin = framework.Binder
	return &e
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
				t.Helper()
				w.o.Settings.Hold = time.Millisecond
				w.run(t.Context(), w.bind("node-b", w.writer("other"), w.waiter("never")))
			},
			within: time.Second,
		},
		"Rejected": {
			reason: "the next call is rejected",
			after: func(t *testing.T, w *world, b posted) {
				t.Helper()
				b.plugins = []framework.Plugin{plugin{name: "no", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
					return framework.Verdict{}, framework.Refuse(framework.Object{}, "no")
				}}}
				w.run(t.Context(), b)
			},
			within: 2 * time.Second,
		},
		"BudgetSpent": {
			reason: "the bind has waited for too long",
			after: func(t *testing.T, w *world, b posted) {
				t.Helper()
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
				t.Helper()
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
			after: func(_ *testing.T, w *world, _ posted) {
				w.mu.Lock()
				w.pod = gen.Pod("web")
				w.pod.UID = "u2"
				w.mu.Unlock()
				w.changed()
			},
			within: time.Second,
		},
		"AllowedNotBound": {
			reason: "the API server does not carry out the bind",
			after: func(t *testing.T, w *world, b posted) {
				t.Helper()
				w.set("a")
				require.Nil(t, w.run(t.Context(), b).Err)
			},
			within: framework.BindSettles + time.Second,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.failing = 2
				b := w.bind(nodeName, w.writer("w"), w.waiter("a"))
				require.NotNil(t, w.run(t.Context(), b).Err)
				began := time.Now()
				tc.after(t, w, b)
				for !slices.Contains(w.said(), "write-w PreBindRollBack") && time.Since(began) < time.Hour {
					pass(100 * time.Millisecond)
					synctest.Wait()
				}
				assert.LessOrEqual(t, time.Since(began), tc.within+time.Second, tc.reason)
				assert.NotContains(t, w.said(), "write-w PostBind")
			})
		})
	}
}

// TestRun_PanicFailsOneBind: a bug in a plugin is an error of the bind.
func TestRun_PanicFailsOneBind(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		o := w.run(t.Context(), w.bind(nodeName, plugin{name: "p", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) { panic("boom") }}))
		require.NotNil(t, o.Err)
		assert.Equal(t, framework.KindInternal, o.Err.Kind)
		assert.Contains(t, o.Err.Error(), "boom")
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
		elapsed time.Duration
		jitter  float64
		want    time.Duration
	}{
		"First":  {want: minRetry},
		"Half":   {elapsed: 20 * time.Second, want: 10 * time.Second},
		"Spread": {elapsed: 40 * time.Second, jitter: 1, want: 25 * time.Second},
		"Most":   {elapsed: time.Hour, want: MaxRetryAfter},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, RetryAfter(tc.elapsed, tc.jitter)) })
	}
}

// unrecorded is a Recorder that ignores all calls.
type unrecorded struct{}

func (unrecorded) Begin(ctx context.Context) context.Context { return ctx }

func (unrecorded) Decided(context.Context, Request, Decision, time.Duration) {}

func (unrecorded) Step(ctx context.Context, _ work.Step) (context.Context, func(error)) {
	return ctx, func(error) {}
}

func (unrecorded) ReadLive(string, string) {}

func (unrecorded) HoldRefused() {}

func (unrecorded) AttemptEnded(string) {}

func (unrecorded) RolledBack(string, error) {}

func (unrecorded) Swept(string, string, error) {}
