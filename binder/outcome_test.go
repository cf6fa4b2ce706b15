// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/seeds"
)

// attemptKeyOfTests is part of the API.
const attemptKeyOfTests = "binder.prebind.dev/attempt"

// scene is an engine whose API server the test plays.
type scene struct {
	*Engine
	cached, live *store
	changes      *framework.Hub
	events       *recorder
}

// newScene returns a scene with these plugins.
func newScene(t *testing.T, plugins ...framework.PreBinder) *scene {
	return newSceneWith(t, func(*Options) {}, plugins...)
}

// newSceneWith returns a scene with these plugins and other options.
func newSceneWith(t *testing.T, change func(*Options), plugins ...framework.PreBinder) *scene {
	s := &scene{cached: holding(thePod, theNode), live: holding(thePod, theNode), changes: framework.NewHub(), events: &recorder{}}
	s.Engine = newTestEngine(t, func(o *Options) {
		o.Cached, o.Live, o.Changes, o.Events, o.Settings.Plugins = s.cached, s.live, s.changes, s.events, plugins
		change(o)
	})
	return s
}

// bound plays the API server that binds the pod by this attempt.
func (s *scene) bound(node, attempt string) {
	pod := thePod.DeepCopy()
	pod.Spec.NodeName = node
	pod.Annotations = map[string]string{attemptKeyOfTests: attempt}
	s.podIs(pod)
}

// podIs changes the pod; nil deletes it.
func (s *scene) podIs(pod *corev1.Pod) {
	// The API server changes before the cache, each in one step.
	switch {
	case pod == nil:
		s.live.set(theNode)
		s.cached.set(theNode)
	case pod.Spec.NodeName == "":
		s.live.set(theNode, pod)
		s.cached.set(theNode, pod)
	default:
		s.live.set(theNode, pod)
		s.cached.set(theNode)
	}
	s.changes.Changed(framework.RefTo(&corev1.Pod{}, thePod.Namespace, thePod.Name))
}

// writer is a plugin that records its calls.
type writer struct {
	*plugin
	calls *journal
}

func (w *writer) PostBind(context.Context, *framework.BindContext) { w.calls.add(w.name + " PostBind") }

func newWriter(name string, calls *journal) *writer {
	return &writer{calls: calls, plugin: &plugin{
		name:     name,
		preBind:  func(context.Context, *framework.BindContext) error { calls.add(name + " PreBind"); return nil },
		rollBack: func(context.Context, *framework.BindContext) error { calls.add(name + " PreBindRollBack"); return nil },
	}}
}

func TestOutcome_EndsTheAttempt(t *testing.T) {
	other := thePod.DeepCopy()
	other.UID = "another"
	terminating := gen.Pod(thePod.Name, gen.UID(thePod.UID), gen.Terminating())
	done := []string{"a PreBind", "b PreBind"}
	committed := append(slices.Clone(done), "a PostBind", "b PostBind")
	undone := append(slices.Clone(done), "b PreBindRollBack", "a PreBindRollBack")
	tests := map[string]struct {
		reason string
		// play happens after the bind was allowed.
		play func(s *scene, attempt string)
		want []string
		// within is when the attempt must have ended.
		within time.Duration
	}{
		"Bound": {
			reason: "PostBind runs",
			play:   func(s *scene, attempt string) { s.bound("node-a", attempt) },
			want:   committed,
		},
		"BoundByAnotherAttempt": {
			reason: "the pod uses the writes, whichever attempt bound it",
			play:   func(s *scene, _ string) { s.bound("node-a", "other") },
			want:   committed,
		},
		"BoundElsewhere": {
			reason: "another scheduler was faster",
			play:   func(s *scene, attempt string) { s.bound("node-b", attempt) },
			want:   undone,
		},
		"Deleted":     {reason: "the pod is gone", play: func(s *scene, _ string) { s.podIs(nil) }, want: undone},
		"Recreated":   {reason: "another pod has the name", play: func(s *scene, _ string) { s.podIs(other) }, want: undone},
		"Terminating": {reason: "a terminating pod will not be bound", play: func(s *scene, _ string) { s.podIs(terminating) }, want: undone},
		"RefusedAfterUs": {
			reason: "another webhook rejected the bind, or the client left: only time shows it",
			play:   func(*scene, string) {},
			want:   undone,
			within: framework.BindSettles + time.Second,
		},
		"SeenLate": {
			reason: "the cache is stale, and the pod is read live before a rollback",
			play: func(s *scene, attempt string) {
				pod := thePod.DeepCopy()
				pod.Spec.NodeName, pod.Annotations = "node-a", map[string]string{attemptKeyOfTests: attempt}
				s.live.set(theNode, pod)
			},
			want:   committed,
			within: framework.BindSettles + time.Second,
		},
		"APIServerDown": {
			reason: "no rollback while the outcome is unknown",
			play: func(s *scene, attempt string) {
				s.live.fail(errors.New("connection refused"))
				s.cached.set(theNode)
				s.changes.Changed(framework.RefTo(&corev1.Pod{}, thePod.Namespace, thePod.Name))
				pass(3 * time.Minute)
				s.bound("node-a", attempt)
				s.live.fail(nil)
			},
			want:   committed,
			within: 4 * time.Minute,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := &journal{}
				s := newScene(t, newWriter("a", calls), newWriter("b", calls))
				d := s.Bind(quiet(t), theRequest())
				require.Nil(t, d.Err)
				attempt := d.Annotations[attemptKeyOfTests]
				require.NotEmpty(t, attempt, "the pod must name the attempt")
				tc.play(s, attempt)
				pass(tc.within)
				synctest.Wait()
				assert.Equal(t, tc.want, calls.all(), tc.reason)
				assert.Empty(t, s.InFlight(), "the attempt has ended")
			})
		})
	}
}

// TestAllow_Again: a repeated Binding is allowed again, and restarts the time for the outcome.
func TestAllow_Again(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		s := newScene(t, newWriter("a", calls))
		first := s.Bind(quiet(t), theRequest())
		require.Nil(t, first.Err)
		pass(framework.BindSettles - time.Second)
		second := s.Bind(quiet(t), theRequest())
		require.Nil(t, second.Err)
		assert.Equal(t, first.Annotations, second.Annotations, "it is the same attempt")
		pass(framework.BindSettles - time.Second)
		assert.NotContains(t, calls.all(), "a PreBindRollBack")
		pass(2 * time.Second)
		assert.Equal(t, []string{"a PreBind", "a PreBind", "a PreBindRollBack"}, calls.all(),
			"a plugin without PreFlight runs for each Binding, and is rolled back once")
	})
}

// beingRolledBack is a scene in which an attempt is being rolled back until release is closed,
// while its pod can be bound again.
func beingRolledBack(t *testing.T) (s *scene, calls *journal, release chan struct{}) {
	calls, release = &journal{}, make(chan struct{})
	w := newWriter("a", calls)
	w.rollBack = func(context.Context, *framework.BindContext) error {
		<-release
		calls.add("a PreBindRollBack")
		return nil
	}
	s = newScene(t, w)
	require.Nil(t, s.Bind(quiet(t), theRequest()).Err)
	s.podIs(terminatingCopy())
	synctest.Wait()
	s.podIs(thePod)
	return s, calls, release
}

// TestBind_DuringRollBack: a call waits for the rollback of an attempt and then starts another.
func TestBind_DuringRollBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, calls, release := beingRolledBack(t)
		d := s.Bind(quiet(t), theRequest())
		assert.Equal(t, framework.KindWait, kindOf(d.Err), "the call is held")
		answer := later(quiet(t), s.Engine, theRequest())
		synctest.Wait()
		close(release)
		require.Nil(t, (<-answer).Err)
		assert.Equal(t, []string{"a PreBind", "a PreBindRollBack", "a PreBind"}, calls.all())
	})
}

func terminatingCopy() *corev1.Pod {
	return gen.Pod(thePod.Name, gen.UID(thePod.UID), gen.Terminating())
}

// TestAttempt_Abandoned: an attempt without further calls is rolled back.
func TestAttempt_Abandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		s := newScene(t, w)
		require.Equal(t, framework.KindWait, kindOf(s.Bind(quiet(t), theRequest()).Err))
		pass(attempt.AbandonAfter - testHold - time.Second)
		assert.Zero(t, w.rollBacks.Load())
		d := s.Bind(quiet(t), theRequest())
		require.Equal(t, framework.KindWait, kindOf(d.Err), "a call in time keeps the attempt")
		pass(d.RetryAfter + attempt.AbandonAfter + time.Second)
		synctest.Wait()
		assert.EqualValues(t, 1, w.rollBacks.Load())
		assert.Empty(t, s.InFlight())
	})
}

// TestAttempt_Superseded: another node ends the older attempt, unless that was allowed.
func TestAttempt_Superseded(t *testing.T) {
	nodeB := gen.Node("node-b")
	requestB := requestFor(gen.Binding(thePod, "node-b", gen.UID("pod-1")))
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		s := newScene(t, w)
		s.cached.set(thePod, theNode, nodeB)
		older := later(quiet(t), s.Engine, theRequest())
		synctest.Wait()
		newer := later(quiet(t), s.Engine, requestB)
		d := <-older
		assert.Equal(t, framework.KindStale, kindOf(d.Err), "the older call is answered at once")
		synctest.Wait()
		assert.EqualValues(t, 1, w.rollBacks.Load(), "the older attempt is rolled back")
		w.release <- nil
		require.Nil(t, (<-newer).Err)
	})
}

// TestRollBack_NotWhileBound: a failed attempt is not rolled back if the pod is bound to the node.
func TestRollBack_NotWhileBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		s := newScene(t, w)
		answer := later(quiet(t), s.Engine, theRequest())
		synctest.Wait()
		bound := thePod.DeepCopy()
		bound.Spec.NodeName = "node-a"
		// Without a notification, because it would end the attempt before the failure.
		s.live.set(theNode, bound)
		s.cached.set(theNode)
		w.release <- errScripted
		assert.Equal(t, framework.KindInternal, kindOf((<-answer).Err))
		pass(time.Minute)
		assert.Zero(t, w.rollBacks.Load())
	})
}

// TestRollBackProperties: for random plugins, failures, panics and outcomes, exactly the started
// plugins are rolled back, in reverse order, each once.
func TestRollBackProperties(t *testing.T) {
	seed := seeds.Of(t, 1)[0]
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // The seed is not a secret.
	pick := func(outcomes ...int) int { return outcomes[random.IntN(len(outcomes))] }
	for round := range 300 {
		scripts := make([]script, 1+random.IntN(6))
		for i := range scripts {
			scripts[i] = script{preFlight: pick(succeeds, succeeds, skips, absent), preBind: pick(succeeds, succeeds, succeeds, succeeds, fails, refuses, panics), rollBack: pick(succeeds, succeeds, failsOnce, panicsOnce)}
		}
		bound := random.IntN(2) == 0
		note := fmt.Sprintf("round %d of seed %d: bound %v, %+v", round, seed, bound, scripts)
		// The model: the started plugins, and whether all succeeded.
		var started []string
		failedAt := false
		for i, s := range scripts {
			if s.preFlight == skips {
				continue
			}
			started = append(started, fmt.Sprintf("p%d", i))
			if wantFrom(s.preBind) != "" {
				failedAt = true
				break
			}
		}
		var want []string
		if failedAt || !bound {
			for _, name := range slices.Backward(started) {
				want = append(want, name+" PreBindRollBack")
			}
		}
		synctest.Test(t, func(t *testing.T) {
			calls := &journal{}
			s := newScene(t, scripted(scripts, calls)...)
			d := s.Bind(quiet(t), theRequest())
			require.Equal(t, failedAt, d.Err != nil, note)
			if bound && !failedAt {
				s.bound("node-a", d.Annotations[attemptKeyOfTests])
			}
			pass(2 * time.Minute)
			synctest.Wait()
			got := slices.DeleteFunc(calls.all(), func(c string) bool {
				return len(c) < 15 || c[len(c)-15:] != "PreBindRollBack"
			})
			require.Equal(t, append([]string{}, want...), append([]string{}, got...), note)
			require.Empty(t, s.InFlight(), note)
		})
	}
}

// quiet is a context whose logger is silent.
func quiet(t testing.TB) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

// TestRollBack_IsReported: an event on the pod lists what was rolled back, if anything.
func TestRollBack_IsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &journal{}
		silent, speaking := newWriter("silent", calls), newWriter("speaking", calls)
		tries := 0
		speaking.rollBack = func(_ context.Context, bc *framework.BindContext) error {
			bc.Undid("gave back the %s", "thing")
			if tries++; tries == 1 {
				return errScripted
			}
			return nil
		}
		s := newScene(t, silent, speaking)
		require.Nil(t, s.Bind(quiet(t), theRequest()).Err)
		pass(framework.BindSettles + time.Minute)
		assert.Equal(t, []string{"web Normal PreBindRolledBack: speaking: Node node-a: the pod was not bound; gave back the thing"}, s.events.all())

		only := newScene(t, silent)
		require.Nil(t, only.Bind(quiet(t), theRequest()).Err)
		pass(framework.BindSettles + time.Minute)
		assert.Empty(t, only.events.all())
	})
}

// TestAttempt_PodGone: a pod is deleted, or bound by another client, while a plugin waits.
func TestAttempt_PodGone(t *testing.T) {
	elsewhere := thePod.DeepCopy()
	elsewhere.Spec.NodeName = "node-z"
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
	}{
		"Deleted":        {reason: "the pod will not be bound"},
		"Terminating":    {reason: "a terminating pod will not run", pod: terminatingCopy()},
		"CreatedAgain":   {reason: "it is another pod", pod: gen.Pod(thePod.Name, gen.UID("pod-9"))},
		"BoundElsewhere": {reason: "another scheduler was faster", pod: elsewhere},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWaiter()
				s := newScene(t, w)
				began := time.Now()
				answer := later(quiet(t), s.Engine, theRequest())
				pass(time.Second)
				changed := thePod.DeepCopy()
				changed.Labels = map[string]string{"a": "b"}
				s.podIs(changed)
				pass(time.Second)
				assert.Empty(t, answer, "the pod can still be bound")
				s.podIs(tc.pod)
				d := <-answer
				assert.Equal(t, framework.KindStale, kindOf(d.Err), tc.reason)
				assert.Equal(t, 2*time.Second, time.Since(began), "the call is answered at once")
				synctest.Wait()
				assert.EqualValues(t, 1, w.rollBacks.Load())
			})
		})
	}
}

// TestAttempt_PodGoneReadFails: the API server does not respond when the pod is deleted.
func TestAttempt_PodGoneReadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		s := newScene(t, w)
		answer := later(quiet(t), s.Engine, theRequest())
		synctest.Wait()
		s.live.fail(errScripted)
		s.podIs(nil)
		pass(3 * attempt.ReadAgain / 2)
		assert.Empty(t, answer)
		s.live.fail(nil)
		pass(attempt.ReadAgain)
		assert.Equal(t, framework.KindStale, kindOf((<-answer).Err))
	})
}
