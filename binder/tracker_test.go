// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/test/gen"
)

// follower is a Recorder that records each step at its end.
type follower struct {
	unrecorded
	journal
}

type stepKey struct{}

func (f *follower) Step(ctx context.Context, s runner.Step) (context.Context, func(error)) {
	return context.WithValue(ctx, stepKey{}, s), func(err error) {
		attempt := ""
		if s.Attempt != "" {
			attempt = " by attempt"
		}
		f.add(fmt.Sprintf("%s %s of %s on %s%s: %s", s.Name, s.Plugin, s.Pod, s.Node, attempt, runner.Result(err)))
	}
}

func (f *follower) ReadLive(_, kind, reason string) { f.add("read " + kind + ": " + reason) }
func (f *follower) HoldRefused()                    { f.add("hold refused") }

// refusals returns the number of calls of HoldRefused.
func (f *follower) refusals() int {
	n := 0
	for _, line := range f.all() {
		if line == "hold refused" {
			n++
		}
	}
	return n
}

// everyPoint is a plugin with all tracked extension points. It checks that each is called with the
// context of its step.
type everyPoint struct {
	*checker
	t       *testing.T
	confirm error
}

func (p *everyPoint) in(ctx context.Context, name string) {
	s, _ := ctx.Value(stepKey{}).(runner.Step)
	assert.Equal(p.t, name, s.Name, "a span of the plugin is a child of this step")
}

func (p *everyPoint) SetupBindContextExtension(ctx context.Context, _ framework.Reader, _ *framework.BindContext) error {
	p.in(ctx, runner.StepPreFlight)
	return nil
}

func (p *everyPoint) PreBind(ctx context.Context, bc *framework.BindContext) error {
	p.in(ctx, runner.StepPreBind)
	synctest.Wait() // until the call is held; it would not hold for an attempt that has ended
	return p.checker.PreBind(ctx, bc)
}

func (p *everyPoint) Confirm(ctx context.Context, _ framework.Reader, _ *framework.BindContext) error {
	p.in(ctx, runner.StepConfirm)
	return p.confirm
}

func (p *everyPoint) PostBind(ctx context.Context, _ *framework.BindContext) {
	p.in(ctx, runner.StepPostBind)
}

func (p *everyPoint) PreBindRollBack(ctx context.Context, bc *framework.BindContext) error {
	p.in(ctx, runner.StepPreBindRollBack)
	return p.checker.PreBindRollBack(ctx, bc)
}

func TestTracker_Steps(t *testing.T) {
	const bind, attempt = " of default/web on node-a: ", " of default/web on node-a by attempt: "
	begins := []string{"Mutators " + bind + "ok", "PreFlight p" + attempt + "ok", "PreBind p" + attempt + "ok", "Confirm p" + attempt + "ok"}
	// The hold and the answer of the call.
	allowed := slices.Concat(begins, []string{"Hold " + attempt + "ok", "Mutators " + attempt + "ok"})
	cases := map[string]struct {
		reason  string
		change  func(p *everyPoint)
		becomes *corev1.Pod
		want    []string
	}{
		"Bound": {
			reason:  "every extension point, in order",
			becomes: gen.Pod(thePod.Name, gen.UID(thePod.UID), gen.BoundTo("node-a")),
			want:    append(allowed[:6:6], "read Pod: outcome", "PostBind p"+attempt+"ok", "Attempt "+attempt+"ok"),
		},
		"NotBound": {
			reason:  "the rollback follows a live read of the pod",
			becomes: terminatingCopy(),
			want:    append(allowed[:6:6], "read Pod: outcome", "read Pod: outcome", "PreBindRollBack p"+attempt+"ok", "Attempt "+attempt+"ok"),
		},
		"PreFlightRefuses": {
			reason: "no attempt starts",
			change: func(p *everyPoint) {
				p.preFlight = func(*framework.BindContext) (framework.Next, error) {
					return framework.Run, framework.Refuse(claim, "no")
				}
			},
			want: []string{"Mutators " + bind + "ok", "PreFlight p" + attempt + "refused", "read Pod: doubted", "read Node: doubted", "PreFlight p" + attempt + "refused"},
		},
		"ConfirmFails": {
			reason: "the attempt ends with the error",
			change: func(p *everyPoint) { p.confirm = errScripted },
			want: append(begins[:3:3], "Confirm p"+attempt+"internal", "Hold "+attempt+"ok", "read Pod: outcome",
				"PreBindRollBack p"+attempt+"ok", "Attempt "+attempt+"internal"),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &everyPoint{checker: &checker{plugin: plugin{name: "p"}}, t: t}
				if tc.change != nil {
					tc.change(p)
				}
				f := &follower{}
				s := newSceneWith(t, func(o *Options) { o.Recorder = f }, p)
				d := s.Bind(quiet(t), theRequest())
				if tc.becomes != nil {
					require.Nil(t, d.Err)
					s.podIs(tc.becomes)
				}
				synctest.Wait()
				// The end of the round wakes the call and the attempt at the same time.
				assert.ElementsMatch(t, tc.want, f.all(), tc.reason)
			})
		})
	}
}

func TestTracker_LiveReads(t *testing.T) {
	cases := map[string]struct {
		reason       string
		cached, live *store
		want         []string
	}{
		"Cached":    {reason: "the cache is enough", cached: holding(thePod, theNode), live: holding(), want: []string{}},
		"PodMissed": {reason: "the cache is behind", cached: holding(theNode), live: holding(thePod), want: []string{"read Pod: missing"}},
		"PodDoubted": {
			reason: "the cache has the deleted pod of the same name", cached: holding(gen.Pod("web", gen.UID("old")), theNode), live: holding(thePod),
			want: []string{"read Pod: doubted"},
		},
		"NodeMissed": {reason: "a new node", cached: holding(thePod), live: holding(theNode), want: []string{"read Node: missing"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			f := &follower{}
			e := newTestEngine(t, func(o *Options) {
				o.Cached, o.Live, o.Recorder = tc.cached, tc.live, f
				o.Settings.Plugins = []framework.PreBinder{&checker{plugin: plugin{name: "p"}, preFlight: seesNothing}}
			})
			require.Nil(t, e.Bind(t.Context(), theRequest()).Err)
			var reads []string
			for _, line := range f.all() {
				if line[:5] == "read " {
					reads = append(reads, line)
				}
			}
			assert.ElementsMatch(t, tc.want, reads, tc.reason)
		})
	}
}

func seesNothing(*framework.BindContext) (framework.Next, error) {
	return framework.Skip, nil
}

func TestTracker_HoldRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newWaiter(), &follower{}
		other := gen.Pod("other", gen.UID("pod-2"))
		e := newTestEngine(t, func(o *Options) {
			o.Settings.Plugins, o.Settings.MaxHolds, o.Recorder = []framework.PreBinder{w}, 1, f
			o.Cached, o.Live = holding(thePod, other, theNode), holding(thePod, other, theNode)
		})
		held := later(t.Context(), e, theRequest())
		synctest.Wait()
		assert.Zero(t, f.refusals())
		d := e.Bind(t.Context(), requestFor(gen.Binding(other, "node-a", gen.UID("pod-2"))))
		require.Equal(t, framework.KindWait, kindOf(d.Err))
		assert.Equal(t, 1, f.refusals())

		// A call without a seat may wait again.
		over := make(chan struct{})
		close(over)
		r := attempt.NewRound(&framework.BindContext{Pod: other}, nil, nil)
		h := hold{call: &call{services: &e.services, settings: &e.settings}}
		assert.True(t, h.until(t.Context(), r, over))
		assert.Equal(t, 1, f.refusals(), "a finished round needs no seat")
		assert.False(t, h.until(t.Context(), r, make(chan struct{})))
		assert.False(t, h.until(t.Context(), r, make(chan struct{})))
		assert.Equal(t, 2, f.refusals(), "a call is refused once")
		w.release <- nil
		w.release <- nil
		assert.Nil(t, (<-held).Err)
	})
}

// TestDecision_Course: a decision has its attempt, its calls and the wait.
func TestDecision_Course(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		s := newScene(t, w)
		first := s.Bind(quiet(t), theRequest())
		require.Equal(t, framework.KindWait, kindOf(first.Err))
		assert.NotEmpty(t, first.Attempt)
		assert.Equal(t, 1, first.Calls)
		assert.Equal(t, testHold, first.Waited)
		held := later(quiet(t), s.Engine, theRequest())
		synctest.Wait()
		w.release <- nil
		second := <-held
		require.Nil(t, second.Err)
		assert.Equal(t, first.Attempt, second.Attempt, "the call joined the attempt")
		assert.Equal(t, second.Attempt, second.Annotations[attemptKeyOfTests])
		assert.Equal(t, 2, second.Calls)
		assert.Equal(t, testHold, second.Waited, "since the first call")
	})
}
