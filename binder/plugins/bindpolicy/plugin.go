// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bindpolicy is the PreBind plugin that applies BindPolicies. It evaluates all policies for every
// bind. If one rejects the bind, the plugin rejects it. Otherwise, the bind waits until no policy delays it, and
// the pod gets the annotations and labels of all policies.
//
// The policies are an immutable snapshot (set.go). A goroutine for each one compiles it and begins its watches, and the controller replaces the
// snapshot (prepare.go, controller.go). A policy that cannot be evaluated, for any reason, follows its failure policy. The leader writes the status of
// the policies (status.go). A bind never compiles an expression, and reads only the cache.
package bindpolicy

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Plugin applies BindPolicies. It is safe for concurrent use.
type Plugin struct {
	h        framework.Handle
	compiler *Compiler
	metrics  *metrics
	// changed receives after a BindPolicy has changed.
	changed signal
	// set contains all policies. It is nil before they are known.
	set atomic.Pointer[set]
	// waiting contains the recent results of calls, by their Binding.
	waiting sync.Map
}

var (
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.Plugin              = (*Plugin)(nil)
	_ framework.Observer            = (*Plugin)(nil)
	_ framework.Starter             = (*Plugin)(nil)
)

func newPlugin(h framework.Handle, a *Arguments, m *metrics, changed signal) *Plugin {
	return &Plugin{h: h, compiler: NewCompiler(policy.Options{KeyPrefixes: a.KeyPrefixes}, h.Discovery, h.Clock), metrics: m, changed: changed}
}

// Name implements framework.Plugin.
func (*Plugin) Name() string { return Name }

// evaluated is the result of one policy that applies to a bind.
type evaluated struct {
	entry  *entry
	result policy.Result
}

// results are the results of the policies that apply to a bind, in the order of the policies.
type results []evaluated

// wait returns whether the bind waits for a policy, and none rejects it.
func (r results) wait() bool {
	waits := false
	for _, e := range r {
		if !e.result.Audit {
			waits = waits || e.result.Verdict == policy.Waiting
			if e.result.Verdict.Rejects() {
				return false
			}
		}
	}
	return waits
}

// looked is the extension: the results, or the error of a read.
type looked struct {
	results results
	err     error
	// again is when the policies are evaluated again, if these are the results of an earlier pass.
	again time.Time
}

// evaluatePause is the minimum time between two evaluations for a call that waits.
const evaluatePause = 50 * time.Millisecond

// recent are results for calls that wait.
type recent struct {
	at time.Time
	looked
}

// SetupBindContextExtension evaluates the policies. For a call that waits for a policy, it repeats the results of the last evaluatePause.
func (p *Plugin) SetupBindContextExtension(ctx context.Context, cache framework.Reader, bc *framework.BindContext) error {
	policies := p.policies()
	if len(policies) == 0 {
		framework.Extend(bc, looked{})
		return nil
	}
	// Each call has its own Binding.
	if last, ok := p.waiting.Load(bc.Binding); ok {
		if r, ok := last.(recent); ok && bc.Now.Before(r.at.Add(evaluatePause)) {
			r.again = r.at.Add(evaluatePause)
			framework.Extend(bc, r.looked)
			return nil
		}
	}
	var l looked
	l.results, l.err = p.evaluate(ctx, policies, cache, subjectOf(bc))
	if l.results.wait() {
		p.waiting.Store(bc.Binding, recent{bc.Now, l})
		p.h.Clock.AfterFunc(evaluatePause, func() { p.waiting.Delete(bc.Binding) })
	}
	framework.Extend(bc, l)
	return nil
}

// PreFlight rejects the bind, lets it wait, or adds the annotations and labels of the policies.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	l, err := framework.Extension[looked](bc)
	if err = cmp.Or(err, l.err); err != nil {
		return framework.Verdict{}, err
	}
	v, err := judge(l.results)
	if !l.again.IsZero() && (v.Wait.Until.IsZero() || l.again.Before(v.Wait.Until)) {
		v.Wait.Until = l.again
	}
	return v, err
}

// BindWaits implements framework.Observer.
func (p *Plugin) BindWaits(_ context.Context, bc *framework.BindContext, _ []framework.Wait) {
	p.report(bc)
}

// BindDecided implements framework.Observer.
func (p *Plugin) BindDecided(_ context.Context, bc *framework.BindContext) { p.report(bc) }

// policies returns all policies.
func (p *Plugin) policies() set {
	if s := p.set.Load(); s != nil {
		return *s
	}
	return nil
}

func subjectOf(bc *framework.BindContext) *policy.Subject {
	return &policy.Subject{Pod: bc.Pod, Node: bc.Node, Binding: bc.Binding, User: bc.User, DryRun: bc.DryRun && !bc.Audit, Now: bc.Now, Since: bc.Since}
}

// evaluate evaluates the policies in order, and returns the results of those that apply. An error means that the context ended.
func (p *Plugin) evaluate(ctx context.Context, policies set, reader framework.Reader, s *policy.Subject) (results, error) {
	o := &objects{reader: reader, system: p.h.Namespace, pod: s.Pod, node: s.Node.Name}
	var applied results
	for _, e := range policies {
		o.evaluates(e)
		r, err := e.compiled.Evaluate(ctx, s, o)
		if err != nil {
			return nil, framework.FromAPI(aboutPolicy(e.name), "evaluating it", err)
		}
		if r.Verdict != policy.NotMatched {
			applied = append(applied, evaluated{entry: e, result: r})
		}
	}
	return applied, nil
}

func aboutPolicy(name string) framework.Object {
	return framework.Object{Kind: v1alpha1.Kind.Kind, Name: name}
}

// report reports the results that are not only part of the answer: in the metrics and, for policies in mode Audit, in events.
func (p *Plugin) report(bc *framework.BindContext) {
	l, err := framework.Extension[looked](bc)
	if err != nil {
		return
	}
	l.results.count()
	if p.h.Events == nil {
		return
	}
	for _, e := range l.results {
		if text := auditText(e.result); text != "" {
			related := &corev1.ObjectReference{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind.Kind, Name: e.result.Policy, UID: e.entry.uid,
			}
			p.h.Events.Eventf(bc.Pod, related, corev1.EventTypeWarning, ReasonAudited, "Binding", "%s", clip(text, maxNote))
		}
	}
}

// count counts the results in the metrics.
func (r results) count() {
	for _, e := range r {
		e.entry.counters.count(e.result)
	}
}
