// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

// onDemand is a checker that takes part only if an annotation requests it.
type onDemand struct{ checker }

func (*onDemand) RequestedBy() framework.Source { return framework.ByBinding }

func acting(name string) *checker {
	return &checker{plugin: plugin{name: name}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
		bc.Intend("%s would write something", name)
		return framework.Run, nil
	}}
}

func waiting(name string) *checker {
	return &checker{plugin: plugin{name: name}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
		bc.ExpectWait(framework.Waiting{Object: claim, For: "a volume"})
		return framework.Run, nil
	}}
}

func nothingToDo(name string) *checker {
	return &checker{plugin: plugin{name: name}, preFlight: func(*framework.BindContext) (framework.Next, error) { return framework.Skip, nil }}
}

func failing(name string, err error) *checker {
	return &checker{plugin: plugin{name: name}, preFlight: func(*framework.BindContext) (framework.Next, error) { return framework.Run, err }}
}

const aboutClaim = "PersistentVolumeClaim default/data"

func TestExplanation(t *testing.T) {
	tells := mutatorFunc(func(in mutators.Input) (mutators.Output, error) {
		return mutators.Output{Annotations: map[string]string{"node": in.Node.Name}, Labels: map[string]string{"rack": "r1"}}, nil
	})
	added := Explanation{Mode: ModeEnforce, Annotations: map[string]string{"test.prebind.dev/node": "node-a"}, Labels: map[string]string{"test.prebind.dev/rack": "r1"}}
	with := func(change func(x *Explanation)) *Explanation {
		x := added
		change(&x)
		return &x
	}
	no := &Refusal{Kind: framework.KindRefuse, Plugin: "no", Object: aboutClaim, Message: "never", Advice: "give up"}
	cases := map[string]struct {
		reason  string
		plugins []framework.PreBinder
		binding func(b *corev1.Binding)
		want    *Explanation
	}{
		"Ready": {
			reason: "no plugin has work to do", plugins: []framework.PreBinder{nothingToDo("a"), &onDemand{*nothingToDo("b")}},
			want: with(func(x *Explanation) {
				x.Verdict, x.Plugins = VerdictBind, []PluginExplanation{{Name: "a", Verdict: PluginReady}, {Name: "b", Verdict: PluginNotAsked}}
			}),
		},
		"Acts": {
			reason: "the plugin would write without a wait", plugins: []framework.PreBinder{acting("a"), &plugin{name: "b"}},
			want: with(func(x *Explanation) {
				x.Verdict = VerdictBind
				x.Plugins = []PluginExplanation{{Name: "a", Verdict: PluginActs, Would: []string{"would write something"}}, {Name: "b", Verdict: PluginActs}}
				x.Warnings = []string{"dry run: a would write something"}
			}),
		},
		"Waits": {
			reason: "each plugin lists its own waits", plugins: []framework.PreBinder{waiting("a"), acting("b")},
			want: with(func(x *Explanation) {
				x.Verdict = VerdictWait
				x.Plugins = []PluginExplanation{
					{Name: "a", Verdict: PluginWaits, WaitsFor: []string{aboutClaim + ": a volume"}},
					{Name: "b", Verdict: PluginActs, Would: []string{"would write something"}},
				}
				x.Warnings = []string{"dry run: b would write something"}
			}),
		},
		"Accompanies": {
			reason: "the plugin would work while the other one does", plugins: []framework.PreBinder{accompanying("a"), waiting("b")},
			want: with(func(x *Explanation) {
				x.Verdict = VerdictWait
				x.Plugins = []PluginExplanation{
					{Name: "a", Verdict: PluginActs, Would: []string{"would do something"}},
					{Name: "b", Verdict: PluginWaits, WaitsFor: []string{aboutClaim + ": a volume"}},
				}
				x.Warnings = []string{"dry run: a would do something"}
			}),
		},
		"AccompaniesNone": {
			reason: "the plugin would not work, because no other one does", plugins: []framework.PreBinder{accompanying("a"), nothingToDo("b")},
			want: with(func(x *Explanation) {
				x.Verdict, x.Plugins = VerdictBind, []PluginExplanation{{Name: "a", Verdict: PluginReady}, {Name: "b", Verdict: PluginReady}}
			}),
		},
		"WaitsAnew": {
			reason: "a plugin that requires another call waits, too", plugins: []framework.PreBinder{failing("a", framework.Wait(claim, "not made yet"))},
			want: &Explanation{
				Verdict: VerdictWait, Mode: ModeEnforce,
				Plugins: []PluginExplanation{{Name: "a", Verdict: PluginWaits, WaitsFor: []string{aboutClaim + ": not made yet"}, Refusal: &Refusal{Kind: framework.KindWait, Plugin: "a", Object: aboutClaim, Message: "not made yet"}}},
				Refusal: &Refusal{Kind: framework.KindWait, Plugin: "a", Object: aboutClaim, Message: "not made yet"},
			},
		},
		"Refuses": {
			reason: "the first rejection decides, and all are listed", plugins: []framework.PreBinder{
				failing("no", framework.Refuse(claim, "never").Advise("give up")), waiting("a"), failing("broken", errors.New("oops")),
			},
			want: &Explanation{
				Verdict: VerdictRefuse, Mode: ModeEnforce, Refusal: no,
				Plugins: []PluginExplanation{
					{Name: "no", Verdict: PluginRefuses, Refusal: no},
					{Name: "a", Verdict: PluginWaits, WaitsFor: []string{aboutClaim + ": a volume"}},
					{Name: "broken", Verdict: PluginRefuses, Refusal: &Refusal{Kind: framework.KindInternal, Plugin: "broken", Message: "oops"}},
				},
			},
		},
		"Guard": {
			reason: "a rejection before PreFlight is explained, too", plugins: []framework.PreBinder{nothingToDo("a")},
			binding: func(b *corev1.Binding) { b.Annotations = map[string]string{"binder.prebind.dev/require": "other"} },
			want: &Explanation{Verdict: VerdictRefuse, Mode: ModeEnforce, Refusal: &Refusal{
				Kind: framework.KindRefuse, Plugin: "binder", Object: "Binding default/web",
				Message: `annotation binder.prebind.dev/require: PreBind plugin "other" is not enabled (enabled: a)`,
				Advice:  "correct the annotation, or enable the plugin with --prebind-plugins",
			}},
		},
		"NoNode": {
			reason: "the API server rejects other targets", plugins: []framework.PreBinder{nothingToDo("a")},
			binding: func(b *corev1.Binding) { b.Target.Kind = "Pod" },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := newTestEngine(t, func(o *Options) { o.Settings.Plugins, o.Settings.Mutators = tc.plugins, chain(t, tells) })
			binding := gen.Binding(thePod, "node-a")
			if tc.binding != nil {
				tc.binding(binding)
			}
			r := requestFor(binding)
			r.DryRun = true
			assert.Equal(t, tc.want, e.Bind(t.Context(), r).Explanation, tc.reason)
			assert.Empty(t, e.InFlight(), "a dry run starts no attempt")

			assert.Nil(t, e.Bind(t.Context(), requestFor(binding)).Explanation, "only a dry run has an explanation")
		})
	}
}

// TestAudit_AllowsAndReports: ModeAudit allows every bind unchanged and reports the decision.
func TestAudit_AllowsAndReports(t *testing.T) {
	cases := map[string]struct {
		reason  string
		plugins []framework.PreBinder
		want    Audit
		warning string
		event   string
	}{
		"Allowed": {reason: "the bind would be allowed", plugins: []framework.PreBinder{acting("a")}, want: Audit{Kind: "allowed"}},
		"Waits": {
			reason: "the bind does not wait", plugins: []framework.PreBinder{waiting("a")},
			want:    Audit{Kind: "waiting", WaitsFor: []string{aboutClaim + ": a volume"}},
			warning: "audit: the bind would wait for " + aboutClaim + ": a volume",
			event:   "web Normal BindAudited: audit: the bind would wait for " + aboutClaim + ": a volume",
		},
		"Refused": {
			reason: "the bind is not rejected", plugins: []framework.PreBinder{refusing("a", "never")},
			want:    Audit{Kind: "refused", Err: &framework.Error{Kind: framework.KindRefuse, Plugin: "a", Object: claim, Message: "never"}},
			warning: "audit: the bind would be rejected (refused): a: " + aboutClaim + ": never",
			event:   "web Normal BindAudited: audit: the bind would be rejected (refused): a: " + aboutClaim + ": never",
		},
		"Failed": {
			reason: "an internal error does not reject the bind", plugins: []framework.PreBinder{&checker{plugin: plugin{name: "a"}, preFlight: func(*framework.BindContext) (framework.Next, error) { panic("oops") }}},
			want: Audit{Kind: "internal"}, warning: "panicked", event: "panicked",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			events := &recorder{}
			tells := mutatorFunc(func(mutators.Input) (mutators.Output, error) {
				return mutators.Output{Annotations: map[string]string{"a": "b"}}, nil
			})
			e := newTestEngine(t, func(o *Options) {
				o.Settings.Plugins, o.Settings.Mode, o.Events, o.Settings.Mutators = tc.plugins, ModeAudit, events, chain(t, tells)
			})
			d := e.Bind(t.Context(), requestFor(gen.Binding(thePod, "node-a")))
			require.Nil(t, d.Err, tc.reason)
			require.NotNil(t, d.Audit)
			assert.Equal(t, "audited", d.Kind())
			assert.Equal(t, tc.want.Kind, d.Audit.Kind)
			assert.Equal(t, tc.want.WaitsFor, d.Audit.WaitsFor)
			if tc.want.Err != nil {
				assert.Equal(t, tc.want.Err, d.Audit.Err)
			}
			assert.Empty(t, d.Annotations, "the Binding is unchanged")
			assert.Empty(t, d.UID, "the Binding is unchanged")
			assert.Empty(t, e.InFlight(), "no attempt starts")
			if tc.warning == "" {
				assert.Empty(t, d.Warnings)
				assert.Empty(t, events.all())
				return
			}
			require.Len(t, d.Warnings, 1)
			assert.Contains(t, d.Warnings[0], tc.warning)
			require.Len(t, events.all(), 1)
			assert.Contains(t, events.all()[0], tc.event)
		})
	}
}

// TestInFlight_OldestFirst: attempts in progress are listed by age.
func TestInFlight_OldestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		second := gen.Pod("second", gen.UID("pod-2"))
		e := newTestEngine(t, func(o *Options) {
			o.Settings.Plugins, o.Cached, o.Live = []framework.PreBinder{w}, holding(thePod, second, theNode), holding(thePod, second)
		})
		began := time.Now()
		require.NotNil(t, e.Bind(t.Context(), theRequest()).Err)
		require.NotNil(t, e.Bind(t.Context(), requestFor(gen.Binding(second, "node-a"))).Err)
		all := e.InFlight()
		require.Len(t, all, 2)
		assert.Equal(t, "web", all[0].Pod)
		assert.Equal(t, "second", all[1].Pod)
		first := all[0]
		assert.Equal(t, began, first.Since.Time)
		assert.Equal(t, "preparing", first.Phase)
		assert.Equal(t, "waiter", first.Plugin)
		assert.Equal(t, "node-a", first.Node)
		assert.Equal(t, aboutClaim+": the volume of the test", first.WaitsFor)
		assert.Equal(t, 10*time.Minute, first.Budget.Duration)
		w.release <- nil
		w.release <- nil
		synctest.Wait()
		for _, f := range e.InFlight() {
			assert.Equal(t, "prepared", f.Phase)
			assert.Empty(t, f.WaitsFor, "the wait is over")
		}
	})
}

// refusing is a plugin whose PreFlight rejects.
func refusing(name, message string) *checker {
	return &checker{plugin: plugin{name: name}, preFlight: func(*framework.BindContext) (framework.Next, error) {
		return framework.Run, framework.Refuse(claim, "%s", message)
	}}
}
