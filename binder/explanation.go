// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"strings"

	"github.com/prebind/prebind/binder/framework"
)

// Verdict is what would become of a Binding.
type Verdict string

const (
	// VerdictBind says that it would be bound at once.
	VerdictBind Verdict = "bind"
	// VerdictWait says that it would have to wait, as far as can be seen without beginning it.
	VerdictWait Verdict = "wait"
	// VerdictRefuse says that it would be refused.
	VerdictRefuse Verdict = "refuse"
)

// Explanation tells what a Binding would do if it were no dry run. Its JSON is
// stable.
type Explanation struct {
	Verdict Verdict `json:"verdict"`
	// Mode is that of the pod's namespace: in ModeAudit the bind goes ahead whatever
	// the verdict is, and nothing is added to it.
	Mode Mode `json:"mode"`
	// Annotations and Labels would be added, by complete key. Those that an attempt
	// would add at its end are not known before.
	Annotations map[string]string `json:"annotations,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Plugins are the PreBind plugins that are switched on, in their order. It is
	// empty where the bind ends before any of them.
	Plugins []PluginExplanation `json:"plugins,omitempty"`
	// Refusal is why the bind would be refused, or would have to begin anew later.
	Refusal *Refusal `json:"refusal,omitempty"`
	// Warnings are those that the client would be shown.
	Warnings []string `json:"warnings,omitempty"`
	// Incomplete says that something was too long to be told.
	Incomplete bool `json:"incomplete,omitempty"`
}

// PluginVerdict is what a PreBind plugin would do about a bind.
type PluginVerdict string

const (
	// PluginNotAsked says that it takes no part, for nothing asks for it.
	PluginNotAsked PluginVerdict = "not-asked"
	// PluginReady says that there is nothing to do.
	PluginReady PluginVerdict = "ready"
	// PluginActs says that it would do what Would says, without a wait that could be foreseen.
	PluginActs PluginVerdict = "acts"
	// PluginWaits says that it would wait for what WaitsFor says.
	PluginWaits PluginVerdict = "waits"
	// PluginRefuses says that it would refuse the bind.
	PluginRefuses PluginVerdict = "refuses"
)

// PluginExplanation is what one PreBind plugin would do.
type PluginExplanation struct {
	Name    string        `json:"name"`
	Verdict PluginVerdict `json:"verdict"`
	// Would are the writes and waits, in whole sentences.
	Would []string `json:"would,omitempty"`
	// WaitsFor are objects with what has to happen to them.
	WaitsFor []string `json:"waitsFor,omitempty"`
	Refusal  *Refusal `json:"refusal,omitempty"`
}

// Refusal is an framework.Error to be shown elsewhere.
type Refusal struct {
	Kind    framework.Kind `json:"kind"`
	Plugin  string         `json:"plugin,omitempty"`
	Object  string         `json:"object,omitempty"`
	Message string         `json:"message"`
	Advice  string         `json:"advice,omitempty"`
}

func refusalOf(err *framework.Error) *Refusal {
	if err == nil {
		return nil
	}
	return &Refusal{Kind: err.Kind, Plugin: err.Plugin, Object: err.Object.String(), Message: err.Message, Advice: err.Advice}
}

// rehearse runs the PreFlight of a dry run and tells what a bind would do. The
// first plugin that refuses decides; the others are asked all the same, so that
// everything that stands in the way is told at once.
func (e *Engine) rehearse(ctx context.Context, c *call) Decision {
	bc := c.context(e.newAttemptID(), e.o.Clock.Now())
	var first *framework.Error
	var plugins []PluginExplanation
	for _, p := range c.settings.Plugins {
		x, err := e.rehearsePlugin(ctx, c, p, bc)
		plugins = append(plugins, x)
		if first == nil {
			first = err
		}
	}
	var d Decision
	if first != nil {
		d = c.preview.deny(first)
	} else {
		d = e.allow(ctx, c, bc)
		for _, intent := range bc.Intents() {
			d.Warnings = append(d.Warnings, "dry run: "+intent)
		}
	}
	d.Explanation = &Explanation{Plugins: plugins}
	return d
}

// rehearsePlugin runs one plugin's PreFlight, if it takes part.
func (e *Engine) rehearsePlugin(ctx context.Context, c *call, p framework.PreBinder, bc *framework.BindContext) (PluginExplanation, *framework.Error) {
	x := PluginExplanation{Name: p.Name()}
	if !takesPart(c.plugins, p.Name()) {
		x.Verdict = PluginNotAsked
		return x, nil
	}
	intents, waits := len(bc.Intents()), len(bc.WouldWaitFor())
	next, err := e.check(ctx, c, p, bc)
	for _, intent := range bc.Intents()[intents:] {
		x.Would = append(x.Would, strings.TrimPrefix(intent, p.Name()+" "))
	}
	for _, w := range bc.WouldWaitFor()[waits:] {
		x.WaitsFor = append(x.WaitsFor, strings.TrimPrefix(w.Object.String()+": "+w.For, ": "))
	}
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
	return x, err
}

// explain completes the decision on a dry run with its explanation.
func explain(c *call, d Decision) Decision {
	if d.PassThrough {
		return d
	}
	x := d.Explanation
	if x == nil {
		x = &Explanation{}
	}
	x.Mode, x.Annotations, x.Labels, x.Refusal, x.Warnings = c.policy.mode, d.Annotations, d.Labels, refusalOf(d.Err), d.Warnings
	x.Verdict = x.verdict()
	d.Explanation = x
	return d
}

// verdict is the whole of what the parts say.
func (x *Explanation) verdict() Verdict {
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

// waitsFor is all that the bind would wait for.
func (x *Explanation) waitsFor() []string {
	var all []string
	for _, p := range x.Plugins {
		all = append(all, p.WaitsFor...)
	}
	return all
}

// audited makes of a decision that was explained one that lets the bind go ahead as
// it is, and reports the other.
func audited(d Decision) Decision {
	a := &Audit{Kind: d.Kind(), Err: d.Err}
	out := Decision{Audit: a, Explanation: d.Explanation}
	switch x := d.Explanation; {
	case d.Err != nil:
		out.Warnings = []string{"audit: the bind would not be allowed (" + a.Kind + "): " + d.Err.Error()}
	case x != nil && x.Verdict == VerdictWait:
		a.Kind, a.WaitsFor = string(framework.KindWait), x.waitsFor()
		out.Warnings = []string{"audit: the bind would wait for " + strings.Join(a.WaitsFor, "; ")}
	}
	return out
}
