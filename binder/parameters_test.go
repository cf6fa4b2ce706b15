// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

// asked is a plugin that takes part if annotations request it.
type asked struct {
	checker
	by framework.Source
}

func (a *asked) Asked() framework.Source { return a.by }

// annotated is theRequest with more annotations on the Binding.
func annotated(pairs ...string) Request {
	b := gen.Binding(thePod, "node-a", gen.UID("pod-1"))
	b.Annotations = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		b.Annotations[pairs[i]] = pairs[i+1]
	}
	return requestFor(b)
}

func TestTakingPart(t *testing.T) {
	cases := map[string]struct {
		reason  string
		by      framework.Source
		pod     []gen.PodOption
		binding []string
		runs    bool
		refused string
	}{
		"NotAsked":        {reason: "no annotation requests the plugin", by: framework.ByBindingOrPod},
		"ByBinding":       {reason: "a scheduler requests the plugin", binding: []string{"p.prebind.dev/x", ""}, runs: true},
		"ByPod":           {reason: "a user requests the plugin", by: framework.ByBindingOrPod, pod: []gen.PodOption{gen.Annotation("p.prebind.dev/x", "1")}, runs: true},
		"PodMayNot":       {reason: "only schedulers may request this plugin", pod: []gen.PodOption{gen.Annotation("p.prebind.dev/x", "1")}},
		"OtherPlugin":     {reason: "the annotation belongs to another plugin", binding: []string{"q.prebind.dev/x", "", "pp.prebind.dev/x", "", "p.prebind.dev.x/y", ""}},
		"OtherDomain":     {reason: "the annotation has another domain", binding: []string{"p.example.com/x", ""}},
		"Required":        {reason: "the annotation require names the plugin", binding: []string{"binder.prebind.dev/require", "p"}, runs: true},
		"RequiredSeveral": {reason: "spaces and empty names are ignored", binding: []string{"binder.prebind.dev/require", " always , p,"}, runs: true},
		"RequiredByPod":   {reason: "a user may require", pod: []gen.PodOption{gen.Annotation("binder.prebind.dev/require", "p")}, runs: true},
		"BindingsWins": {
			reason: "the annotation of the Binding wins", pod: []gen.PodOption{gen.Annotation("binder.prebind.dev/require", "other")},
			binding: []string{"binder.prebind.dev/require", "p"}, runs: true,
		},
		"RequiredEmpty":   {reason: "an empty list requires no plugin", binding: []string{"binder.prebind.dev/require", ""}},
		"RequiredUnknown": {reason: "a required plugin must be enabled", binding: []string{"binder.prebind.dev/require", "p,other"}, refused: `"other"`},
		"RequiredMutator": {reason: "a mutator is not a PreBind plugin", binding: []string{"binder.prebind.dev/require", "test"}, refused: `"test"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := gen.Pod("web", append([]gen.PodOption{gen.UID("pod-1")}, tc.pod...)...)
			always := &checker{plugin: plugin{name: "always"}, preFlight: skipping}
			p := &asked{checker: checker{plugin: plugin{name: "p"}, preFlight: skipping}, by: tc.by}
			e := newTestEngine(t, func(o *Options) {
				o.Cached = holding(pod, theNode)
				o.Settings.Plugins = []framework.PreBinder{always, p}
				o.Settings.Mutators = chain(t, mutatorFunc(func(mutators.Input) (mutators.Output, error) { return mutators.Output{}, nil }))
			})
			d := e.Bind(t.Context(), annotated(tc.binding...))
			if tc.refused != "" {
				require.Equal(t, framework.KindRefuse, kindOf(d.Err), tc.reason)
				assert.Contains(t, d.Err.Error(), tc.refused)
				assert.Contains(t, d.Err.Error(), "always, p", "the enabled plugins are listed")
				assert.Equal(t, "binder", d.Err.Plugin)
				assert.Zero(t, always.preFlights.Load()+p.preFlights.Load())
				return
			}
			require.Nil(t, d.Err)
			assert.EqualValues(t, 1, always.preFlights.Load(), "a plugin without OnAnnotation always takes part")
			assert.Equal(t, tc.runs, p.preFlights.Load() == 1, tc.reason)
		})
	}
}

// TestRequire_AllDisabled: a Binding that requires a plugin does not pass an engine without plugins.
func TestRequire_AllDisabled(t *testing.T) {
	e := newTestEngine(t, nil)
	d := e.Bind(t.Context(), annotated("binder.prebind.dev/require", "device"))
	assert.Equal(t, framework.KindRefuse, kindOf(d.Err))
}

// TestOtherParameters_StartAgain: a call with other parameters does not use the attempt of the
// earlier ones.
func TestOtherParameters_StartAgain(t *testing.T) {
	const key = "waiter.prebind.dev/device"
	t.Run("DuringPreBind", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var prepared []string
			w := newWaiter()
			wait := w.preBind
			w.preBind = func(ctx context.Context, bc *framework.BindContext) error {
				prepared = append(prepared, bc.Binding.Annotations[key])
				return wait(ctx, bc)
			}
			e := engineWith(t, w)
			first := later(t.Context(), e, annotated(key, "1"))
			synctest.Wait()
			second := later(t.Context(), e, annotated(key, "2"))
			assert.Equal(t, framework.KindStale, kindOf((<-first).Err), "its parameters are outdated")
			w.release <- nil
			require.Nil(t, (<-second).Err)
			assert.Equal(t, []string{"1", "2"}, prepared)
			assert.EqualValues(t, 1, w.rollBacks.Load())
		})
	})
	t.Run("OtherThanItsAdditions", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWaiter()
			wait := w.preBind
			w.preBind = func(ctx context.Context, bc *framework.BindContext) error {
				bc.Annotate("waiter", "device", "1")
				return wait(ctx, bc)
			}
			e := engineWith(t, w)
			first := later(t.Context(), e, theRequest())
			synctest.Wait()
			second := later(t.Context(), e, annotated(key, "2"))
			assert.Equal(t, framework.KindStale, kindOf((<-first).Err))
			w.release <- nil
			require.Nil(t, (<-second).Err, "another value is another parameter")
			assert.EqualValues(t, 2, w.preBinds.Load())
		})
	})
	t.Run("OfThePod", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			edited := gen.Pod("web", gen.UID("pod-1"), gen.Annotation(key, "2"))
			w := newWaiter()
			wait := w.preBind
			w.preBind = func(ctx context.Context, bc *framework.BindContext) error {
				bc.Annotate("waiter", "device", "1")
				return wait(ctx, bc)
			}
			pods := holding(thePod, theNode)
			e := newTestEngine(t, func(o *Options) { o.Settings.Plugins, o.Cached = []framework.PreBinder{w}, pods })
			first := later(t.Context(), e, theRequest())
			synctest.Wait()
			pods.set(edited, theNode)
			second := later(t.Context(), e, theRequest())
			assert.Equal(t, framework.KindStale, kindOf((<-first).Err))
			w.release <- nil
			require.Nil(t, (<-second).Err)
			assert.EqualValues(t, 2, w.preBinds.Load(), "a user may have edited the pod")
		})
	})
	t.Run("AfterAFailure", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWaiter()
			e := engineWith(t, w)
			require.Equal(t, framework.KindWait, kindOf(e.Bind(t.Context(), annotated(key, "1")).Err))
			w.release <- framework.Refuse(claim, "no")
			synctest.Wait()
			second := later(t.Context(), e, annotated(key, "2"))
			synctest.Wait()
			w.release <- nil
			require.Nil(t, (<-second).Err, "the error belongs to other parameters")
		})
	})
	t.Run("Others' annotations", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWaiter()
			e := engineWith(t, w)
			first := later(t.Context(), e, annotated(key, "1"))
			synctest.Wait()
			second := later(t.Context(), e, annotated(key, "1", "example.com/try", "2", "topology.prebind.dev/zone", "z"))
			synctest.Wait()
			w.release <- nil
			require.Nil(t, (<-first).Err)
			require.Nil(t, (<-second).Err, "annotations of other programs do not matter")
			assert.EqualValues(t, 1, w.preBinds.Load())
		})
	})
	t.Run("OwnAdditionsComeBack", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWaiter()
			wait := w.preBind
			w.preBind = func(ctx context.Context, bc *framework.BindContext) error {
				bc.Annotate("waiter", "found", "x")
				return wait(ctx, bc)
			}
			e := engineWith(t, w)
			first := later(t.Context(), e, annotated(key, "1"))
			synctest.Wait()
			second := later(t.Context(), e, annotated(key, "1", "waiter.prebind.dev/found", "x", "binder.prebind.dev/attempt", "here-1"))
			synctest.Wait()
			w.release <- nil
			require.Nil(t, (<-first).Err)
			require.Nil(t, (<-second).Err, "a reinvocation has the annotations of the first answer")
			assert.EqualValues(t, 1, w.preBinds.Load())
		})
	})
}
