// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"strings"

	"github.com/prebind/prebind/binder/framework"
)

func refusalOf(err *framework.Error) *Refusal {
	if err == nil {
		return nil
	}
	return &Refusal{Kind: err.Kind, Plugin: err.Plugin, Object: err.Object.String(), Message: err.Message, Advice: err.Advice}
}

// explained returns the decision on a dry run with its explanation. The first plugin that rejects the bind decides. The explanation has
// the obstacles of all.
func (c *call) explained(d Decision) Decision {
	x := &Explanation{Verdict: VerdictBind, Mode: c.settings.Mode, Annotations: d.Annotations, Labels: d.Labels}
	asked := map[string]result{}
	for _, r := range c.results {
		asked[r.plugin.Name()] = r
	}
	for _, p := range c.settings.Plugins {
		if c.node == nil {
			break // The bind ended before PreFlight.
		}
		of := PluginExplanation{Name: p.Name(), Verdict: PluginNotAsked}
		if r, ok := asked[p.Name()]; ok {
			of = explained(r)
		}
		x.Plugins = append(x.Plugins, of)
		if of.Verdict == PluginWaits {
			x.Verdict = VerdictWait
		}
		if d.Err != nil {
			continue
		}
		for _, would := range of.Would {
			d.Warnings = append(d.Warnings, "dry run: "+p.Name()+" would "+would)
		}
		if len(of.Would) > 0 {
			continue // The writes say what they wait for.
		}
		for _, awaited := range of.WaitsFor {
			d.Warnings = append(d.Warnings, "dry run: "+p.Name()+" would wait for "+awaited)
		}
	}
	switch {
	case d.Err == nil:
	case d.Err.Kind == framework.KindWait:
		x.Verdict = VerdictWait
	default:
		x.Verdict = VerdictRefuse
	}
	d.Explanation = x
	return d
}

// explained returns the explanation of one result.
func explained(r result) PluginExplanation {
	x := PluginExplanation{Name: r.plugin.Name(), Verdict: PluginReady, Findings: r.verdict.Findings}
	for _, w := range r.verdict.Writes {
		x.Verdict, x.Would = PluginActs, append(x.Would, w)
	}
	if r.verdict.Wait.For != "" {
		x.Verdict, x.WaitsFor = PluginWaits, []string{r.verdict.Wait.String()}
	}
	switch {
	case r.err == nil:
	case r.err.Kind == framework.KindWait:
		x.Verdict, x.Refusal = PluginWaits, refusalOf(r.err)
		x.WaitsFor = append(x.WaitsFor, strings.TrimPrefix(r.err.Object.String()+": "+r.err.Message, ": "))
	default:
		x.Verdict, x.Refusal = PluginRejects, refusalOf(r.err)
	}
	return x
}

// auditOnly returns a decision that allows the bind unchanged and reports the one that was
// explained.
func auditOnly(d Decision) Decision {
	if d.PassThrough {
		return Decision{PassThrough: true}
	}
	a := &Audit{Kind: d.Kind(), Err: d.Err}
	out := Decision{Audit: a, Explanation: d.Explanation}
	switch x := d.Explanation; {
	case d.Err != nil && d.Err.Kind == framework.KindWait:
		out.Warnings = []string{"audit: the bind would wait: " + d.Err.Error()}
	case d.Err != nil:
		out.Warnings = []string{"audit: the bind would be rejected (" + a.Kind + "): " + d.Err.Error()}
	case x.Verdict == VerdictWait:
		a.Kind = string(framework.KindWait)
		var awaited []string
		for _, p := range x.Plugins {
			awaited = append(awaited, p.WaitsFor...)
		}
		out.Warnings = []string{"audit: the bind would wait for " + strings.Join(awaited, "; ")}
	}
	out.Warnings = append(out.Warnings, d.Warnings...)
	return out
}
