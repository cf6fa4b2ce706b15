// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"strings"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
)

func refusalOf(err *framework.Error) *Refusal {
	if err == nil {
		return nil
	}
	return &Refusal{Kind: err.Kind, Plugin: err.Plugin, Object: err.Object.String(), Message: err.Message, Advice: err.Advice}
}

// rehearse runs the PreFlight of a dry run. The first plugin that rejects the bind decides.
// The PreFlight of the others still runs, so that the explanation lists all obstacles.
func (c *call) rehearse(ctx context.Context) Decision {
	bc := c.context(attempt.NewID(c.replica))
	var first *framework.Error
	var all []rehearsed
	works := false
	for _, p := range c.settings.Plugins {
		r := c.rehearsePlugin(ctx, p, bc)
		all = append(all, r)
		works = works || r.next == framework.Run
		if first == nil {
			first = r.err
		}
	}
	d := c.preview
	if first != nil {
		d = d.deny(first)
	} else {
		d = c.allow(ctx, bc)
	}
	x := &Explanation{}
	for _, r := range all {
		if r.next == framework.Accompany {
			r = r.accompanying(works)
		}
		x.Plugins = append(x.Plugins, r.PluginExplanation)
		for _, intent := range r.intents {
			if first == nil {
				d.Warnings = append(d.Warnings, "dry run: "+intent)
			}
		}
	}
	d.Explanation = x
	return d
}

// rehearsed is the result of one plugin's PreFlight in a dry run.
type rehearsed struct {
	PluginExplanation
	next    framework.Next
	err     *framework.Error
	intents []string
}

// accompanying returns the result of a plugin that returned Accompany. works is set if PreBind of
// another plugin would run.
func (r rehearsed) accompanying(works bool) rehearsed {
	switch {
	case !works:
		r.Verdict, r.Would, r.intents = PluginReady, nil, nil
	case r.Verdict == PluginReady:
		r.Verdict = PluginActs
	}
	return r
}

// rehearsePlugin runs one plugin's PreFlight, if it takes part.
func (c *call) rehearsePlugin(ctx context.Context, p framework.PreBinder, bc *framework.BindContext) rehearsed {
	x := PluginExplanation{Name: p.Name()}
	if !takesPart(c.plugins, p.Name()) {
		x.Verdict = PluginNotAsked
		return rehearsed{PluginExplanation: x, next: framework.Skip}
	}
	before, waits, findings := len(bc.Intents()), len(bc.ExpectedWaits()), len(bc.Findings())
	next, err := c.check(ctx, p, bc)
	intents := bc.Intents()[before:]
	for _, intent := range intents {
		x.Would = append(x.Would, strings.TrimPrefix(intent, p.Name()+" "))
	}
	for _, w := range bc.ExpectedWaits()[waits:] {
		x.WaitsFor = append(x.WaitsFor, strings.TrimPrefix(w.Object.String()+": "+w.For, ": "))
	}
	x.Findings = boundedFindings(bc.Findings()[findings:])
	switch {
	case err != nil && err.Kind == framework.KindWait:
		x.Verdict, x.Refusal, x.WaitsFor = PluginWaits, refusalOf(err), append(x.WaitsFor, strings.TrimPrefix(err.Object.String()+": "+err.Message, ": "))
	case err != nil:
		x.Verdict, x.Refusal = PluginRefuses, refusalOf(err)
	case len(x.WaitsFor) > 0:
		x.Verdict = PluginWaits
	case next == framework.Run:
		x.Verdict = PluginActs
	default:
		x.Verdict = PluginReady
	}
	return rehearsed{PluginExplanation: x, next: next, err: err, intents: intents}
}

// boundedFindings returns the findings within the limits.
func boundedFindings(all []framework.Finding) []framework.Finding {
	var bounded []framework.Finding
	for _, f := range all[:min(len(all), maxFindings)] {
		bounded = append(bounded, framework.Finding{
			Name: runner.Clip(f.Name, maxName), Verdict: runner.Clip(f.Verdict, maxName), Message: runner.Clip(f.Message, maxMessage),
		})
	}
	if left := len(all) - maxFindings; left > 0 {
		bounded = append(bounded, framework.Finding{Name: fmt.Sprintf("and %d more", left)})
	}
	return bounded
}

// explain completes the decision on a dry run with its explanation.
func explain(mode Mode, d Decision) Decision {
	if d.PassThrough {
		return d
	}
	x := d.Explanation
	if x == nil {
		x = &Explanation{}
	}
	x.Mode, x.Annotations, x.Labels, x.Refusal, x.Warnings = mode, d.Annotations, d.Labels, refusalOf(d.Err), d.Warnings
	x.Verdict = verdictOf(x)
	d.Explanation = x
	return d
}

// verdictOf returns the verdict that follows from the refusal and the plugins.
func verdictOf(x *Explanation) Verdict {
	switch {
	case x.Refusal != nil && x.Refusal.Kind == framework.KindWait:
		return VerdictWait
	case x.Refusal != nil:
		return VerdictRefuse
	}
	for _, p := range x.Plugins {
		if p.Verdict == PluginWaits {
			return VerdictWait
		}
	}
	return VerdictBind
}

// auditOnly returns a decision that allows the bind unchanged and reports the one that was
// explained.
func auditOnly(d Decision) Decision {
	a := &Audit{Kind: d.Kind(), Err: d.Err}
	out := Decision{Audit: a, Explanation: d.Explanation}
	switch x := d.Explanation; {
	case d.Err != nil:
		out.Warnings = []string{"audit: the bind would be rejected (" + a.Kind + "): " + d.Err.Error()}
	case x != nil && x.Verdict == VerdictWait:
		a.Kind = string(framework.KindWait)
		for _, p := range x.Plugins {
			a.WaitsFor = append(a.WaitsFor, p.WaitsFor...)
		}
		out.Warnings = []string{"audit: the bind would wait for " + strings.Join(a.WaitsFor, "; ")}
	}
	return out
}
