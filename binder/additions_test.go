// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

func TestPlugin_SetsCompleteKeys(t *testing.T) {
	type values = map[string]string
	cases := map[string]struct {
		reason              string
		preFlight           func(bc *framework.BindContext)
		preBind             func(bc *framework.BindContext)
		annotations, labels values
		kind                framework.Kind
		says                string
	}{
		"Both": {
			reason: "the Binding gets the keys as they are",
			preFlight: func(bc *framework.BindContext) {
				bc.SetAnnotation("p", "ray.io/topology", "any text")
				bc.SetLabel("p", "ray.io/rack", "r1")
			},
			annotations: values{"ray.io/topology": "any text"}, labels: values{"ray.io/rack": "r1", "test.prebind.dev/rack": "r0"},
		},
		"Replaces": {
			reason:    "the value of the plugin replaces that of a mutator",
			preFlight: func(bc *framework.BindContext) { bc.SetLabel("p", "test.prebind.dev/rack", "r1") },
			labels:    values{"test.prebind.dev/rack": "r1"},
		},
		"InPreBind": {
			reason:    "the last value counts",
			preFlight: func(bc *framework.BindContext) { bc.SetLabel("p", "a.io/a", "1"); bc.SetAnnotation("p", "a.io/b", "1") },
			preBind:   func(bc *framework.BindContext) { bc.SetLabel("p", "a.io/a", "2"); bc.SetAnnotation("p", "a.io/b", "2") },
			// TestPlugin_Annotates covers the rest of the order.
			annotations: values{"a.io/b": "2"}, labels: values{"a.io/a": "2", "test.prebind.dev/rack": "r0"},
		},
		"BadAnnotation": {reason: "the key is not valid", preFlight: func(bc *framework.BindContext) { bc.SetAnnotation("p", "a/b/c", "") }, kind: framework.KindInternal, says: `p: invalid annotation key "a/b/c"`},
		"BadLabel":      {reason: "the key is not valid", preFlight: func(bc *framework.BindContext) { bc.SetLabel("p", "no good", "") }, kind: framework.KindInternal, says: `p: invalid label key "no good"`},
		"BadValue":      {reason: "the value is not valid", preFlight: func(bc *framework.BindContext) { bc.SetLabel("p", "a.io/a", "no good") }, kind: framework.KindInternal, says: `p: invalid value "no good" of label a.io/a: `},
		"Foreign":       {reason: "the name is that of another plugin", preFlight: func(bc *framework.BindContext) { bc.SetLabel("q", "a.io/a", "1") }, kind: framework.KindInternal},
		"TooLarge":      {reason: "the pod would be too large", preFlight: func(bc *framework.BindContext) { bc.SetAnnotation("p", "a.io/a", strings.Repeat("x", 256<<10)) }, kind: framework.KindInvalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p := &checker{plugin: plugin{name: "p"}}
			p.preFlight = func(bc *framework.BindContext) (framework.Next, error) {
				tc.preFlight(bc)
				if tc.preBind != nil {
					return framework.Run, nil
				}
				return framework.Skip, nil
			}
			p.preBind = func(_ context.Context, bc *framework.BindContext) error {
				tc.preBind(bc)
				return nil
			}
			e := newTestEngine(t, func(o *Options) {
				o.Settings.Plugins = []framework.PreBinder{p}
				o.Settings.Mutators = chain(t, mutatorFunc(func(mutators.Input) (mutators.Output, error) {
					return mutators.Output{Labels: values{"rack": "r0"}}, nil
				}))
			})
			d := e.Bind(t.Context(), theRequest())
			require.Equal(t, tc.kind, kindOf(d.Err), tc.reason)
			if tc.kind != "" {
				assert.Contains(t, d.Err.Error(), tc.says)
				return
			}
			delete(d.Annotations, "binder.prebind.dev/attempt")
			if len(d.Annotations) > 0 {
				assert.Equal(t, tc.annotations, d.Annotations, tc.reason)
			}
			assert.Len(t, d.Annotations, len(tc.annotations))
			assert.Equal(t, tc.labels, d.Labels, tc.reason)
		})
	}
}

// TestPlugin_DropsCompleteKeys: complete keys of an earlier round do not come back, whether or not the plugin runs again.
func TestPlugin_DropsCompleteKeys(t *testing.T) {
	type values = map[string]string
	cases := map[string]struct {
		reason string
		next   framework.Next
		want   values
	}{
		"Skips": {reason: "PreFlight decides again", next: framework.Skip, want: values{"a.io/new": "2"}},
		"Runs":  {reason: "PreBind runs again", next: framework.Run, want: values{"a.io/new": "2"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &checker{plugin: plugin{name: "p"}}
				p.preFlight = func(bc *framework.BindContext) (framework.Next, error) {
					if p.preFlights.Load() > 1 {
						bc.SetLabel("p", "a.io/new", "2")
						bc.SetAnnotation("p", "a.io/new", "2")
						return tc.next, nil
					}
					for _, key := range []string{"a.io/old", "a.io/both"} {
						bc.SetLabel("p", key, "1")
						bc.SetAnnotation("p", key, "1")
					}
					return framework.Run, nil
				}
				e := newTestEngine(t, func(o *Options) {
					o.Settings.Plugins, o.Live = []framework.PreBinder{p, nothingToDo("none")}, holding(thePod)
				})
				first := e.Bind(t.Context(), theRequest())
				require.Nil(t, first.Err)
				require.Equal(t, values{"a.io/old": "1", "a.io/both": "1"}, first.Labels)
				second := e.Bind(t.Context(), theRequest())
				require.Nil(t, second.Err)
				assert.Equal(t, tc.want, second.Labels, tc.reason)
				delete(second.Annotations, attemptKeyOfTests)
				assert.Equal(t, tc.want, second.Annotations, tc.reason)
			})
		})
	}
}

// warning is a checker that warns in PreFlight, and then returns the result.
func warning(next framework.Next, err error, texts ...string) *checker {
	return &checker{plugin: plugin{name: "p"}, preFlight: func(bc *framework.BindContext) (framework.Next, error) {
		for _, text := range texts {
			bc.Warn("%s", text)
		}
		return next, err
	}}
}

// The client gets the warnings of plugins with every answer, each once.
func TestPlugin_Warns(t *testing.T) {
	mutator := mutatorFunc(func(mutators.Input) (mutators.Output, error) { return mutators.Output{}, errUnread })
	waits := warning(framework.Run, nil, "a", "b", "a")
	waits.preBind = func(ctx context.Context, _ *framework.BindContext) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	var many, first []string
	for i := range 2 * maxWarnings {
		many = append(many, fmt.Sprint(i))
	}
	first = many[:maxWarnings-1]
	for name, tc := range map[string]struct {
		reason string
		p      *checker
		mode   Mode
		dryRun bool
		kind   string
		want   []string
	}{
		"Allowed":  {reason: "the plugin has nothing to do", p: warning(framework.Skip, nil, "a", "b", "a"), kind: "allowed", want: []string{"a", "b"}},
		"Attempt":  {reason: "an attempt allows the bind", p: warning(framework.Run, nil, "a", "b", "a"), kind: "allowed", want: []string{"a", "b"}},
		"Rejected": {reason: "the warnings of the live decision count, too", p: warning(framework.Run, framework.Refuse(claim, "no"), "a", "b"), kind: "refused", want: []string{"a", "b"}},
		"Waits":    {reason: "the call ends before the wait", p: waits, kind: "waiting", want: []string{"a", "b"}},
		"DryRun":   {reason: "a dry run has them, too", p: warning(framework.Skip, nil, "a", "b"), dryRun: true, kind: "allowed", want: []string{"a", "b"}},
		"Audit":    {reason: "they report what the mode allows", p: warning(framework.Skip, nil, "a", "b"), mode: ModeAudit, kind: "audited", want: []string{"a", "b"}},
		"Many":     {reason: "there is a limit", p: warning(framework.Skip, nil, many...), kind: "allowed", want: first},
		"Long":     {reason: "a text has a limit", p: warning(framework.Skip, nil, strings.Repeat("x", 2*maxMessage)), kind: "allowed", want: []string{strings.Repeat("x", maxMessage-len("…")) + "…"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newTestEngine(t, func(o *Options) {
					o.Settings.Plugins, o.Settings.Mutators = []framework.PreBinder{tc.p}, chain(t, mutator)
					if tc.mode != "" {
						o.Settings.Mode = tc.mode
					}
				})
				r := theRequest()
				r.DryRun = tc.dryRun
				d := e.Bind(t.Context(), r)
				require.Equal(t, tc.kind, d.Kind(), tc.reason)
				want := tc.want
				if tc.mode != ModeAudit {
					require.Contains(t, d.Warnings[0], "test: mutator failed")
					d.Warnings = d.Warnings[1:]
				}
				assert.Equal(t, want, d.Warnings, tc.reason)
				if tc.dryRun {
					assert.Contains(t, d.Explanation.Warnings, "a")
				}
			})
		})
	}
}

// A Waiter adds what its last look has added.
func TestPlugin_WarnsAfterTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h framework.Handle
		ready := false
		e := newTestEngine(t, func(o *Options) {
			h = framework.Handle{Cached: o.Cached, Live: o.Live, Changes: o.Changes, Clock: o.Clock}
			o.Settings.Plugins = []framework.PreBinder{framework.NewWaiter("p", h, func(_ context.Context, _ framework.Reader, bc *framework.BindContext) (framework.Waiting, error) {
				if !ready {
					bc.Warn("not yet")
					return framework.Waiting{For: "the rule"}, nil
				}
				bc.Warn("ready")
				bc.SetLabel("p", "a.io/a", "1")
				return framework.Waiting{}, nil
			}).WokenBy(framework.AllOf(theNode, ""))}
		})
		answer := later(t.Context(), e, theRequest())
		synctest.Wait()
		require.Empty(t, answer)
		ready = true
		h.Changes.Changed(framework.RefTo(theNode, "", "any"))
		d := <-answer
		require.Nil(t, d.Err)
		assert.Equal(t, []string{"not yet", "ready"}, d.Warnings)
		assert.Equal(t, map[string]string{"a.io/a": "1"}, d.Labels)
	})
}

// A call that joins an attempt gets the warnings of its PreFlight.
func TestPlugin_WarnsLaterCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := warning(framework.Run, nil, "slow")
		p.preBind = func(ctx context.Context, _ *framework.BindContext) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		e := engineWith(t, p)
		for range 2 {
			d := e.Bind(t.Context(), theRequest())
			require.Equal(t, framework.KindWait, kindOf(d.Err))
			assert.Equal(t, []string{"slow"}, d.Warnings)
		}
		assert.EqualValues(t, 1, p.preFlights.Load())
	})
}

// Only the findings of the last PreFlight count, and those of each plugin are its own.
func TestExplanation_Findings(t *testing.T) {
	rules := &checker{plugin: plugin{name: "rules"}}
	rules.preFlight = func(bc *framework.BindContext) (framework.Next, error) {
		bc.Found(framework.Finding{Name: "csi-ready", Verdict: "waiting", Message: "no driver"})
		bc.Found(framework.Finding{Name: "live", Verdict: fmt.Sprint(bc.Live)})
		return framework.Run, framework.Refuse(claim, "no")
	}
	many := &checker{plugin: plugin{name: "many"}}
	many.preFlight = func(bc *framework.BindContext) (framework.Next, error) {
		for range maxFindings + 2 {
			bc.Found(framework.Finding{Name: strings.Repeat("n", 1000), Verdict: "v", Message: strings.Repeat("m", 10000)})
		}
		return framework.Skip, nil
	}
	e := engineWith(t, rules, many, nothingToDo("none"))
	r := requestFor(gen.Binding(thePod, "node-a"))
	r.DryRun = true
	plugins := e.Bind(t.Context(), r).Explanation.Plugins
	require.Len(t, plugins, 3)
	assert.Equal(t, []framework.Finding{{Name: "csi-ready", Verdict: "waiting", Message: "no driver"}, {Name: "live", Verdict: "true"}}, plugins[0].Findings)
	require.Len(t, plugins[1].Findings, maxFindings+1)
	assert.Equal(t, framework.Finding{Name: "and 2 more"}, plugins[1].Findings[maxFindings])
	assert.Len(t, plugins[1].Findings[0].Name, maxName)
	assert.Len(t, plugins[1].Findings[0].Message, maxMessage)
	assert.Empty(t, plugins[2].Findings)
}
