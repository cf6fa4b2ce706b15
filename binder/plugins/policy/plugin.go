// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy is the PreBind plugin that applies BindPolicies. It evaluates all policies for every
// bind. If one rejects the bind, the plugin rejects it. Otherwise, the bind waits until no policy delays it and all tasks of the policies are
// ready (internal/tasks), and the pod gets the annotations and labels of all policies.
//
// The policies are an immutable snapshot. A goroutine for each one compiles it, begins its watches, and replaces the snapshot (policies.go). A policy that
// cannot be evaluated, for any reason, follows its failure policy. The leader writes the status of the policies (status.go). A bind never compiles an
// expression, and reads only the cache.
package policy

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/tasks"
	"github.com/prebind/prebind/internal/text"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Plugin applies BindPolicies. It is safe for concurrent use.
type Plugin struct {
	*tasks.Store
	h        framework.Handle
	compiler *Compiler
	metrics  *metrics
	// changed receives after a BindPolicy has changed.
	changed signal
	// latest contains the newest generation of each policy by name, and set their entries in the order of the names. set is nil before the policies are
	// known. synced is HasSynced.
	mu     sync.Mutex
	latest map[string]*generation
	set    atomic.Pointer[[]*entry]
	synced atomic.Bool
}

var (
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.PreBinder           = (*Plugin)(nil)
	_ framework.Observer            = (*Plugin)(nil)
	_ framework.Starter             = (*Plugin)(nil)
	_ framework.Tidier              = (*Plugin)(nil)
)

func newPlugin(h framework.Handle, a *Arguments, m *metrics, changed signal) *Plugin {
	return &Plugin{
		Store: tasks.NewStore(h), h: h, compiler: NewCompiler(policy.Options{KeyPrefixes: a.KeyPrefixes}, h.Discovery), metrics: m, changed: changed,
		latest: map[string]*generation{},
	}
}

// Name implements framework.Plugin.
func (*Plugin) Name() string { return Name }

// looked is the extension: the results with the states of the tasks, and the writes of PreBind. others are the policies that do not match, in
// a dry run.
type looked struct {
	results []policy.Result
	others  []framework.Finding
	asked   []tasks.Asked
	writes  []string
}

// maxOthers limits the policies that do not match in an explanation, whose size is limited.
const maxOthers = 64

// SetupBindContextExtension evaluates the policies, and reads their tasks.
func (p *Plugin) SetupBindContextExtension(ctx context.Context, cache framework.Reader, bc *framework.BindContext) error {
	policies := p.set.Load()
	if policies == nil || len(*policies) == 0 {
		framework.Extend(bc, looked{})
		return nil
	}
	l := looked{}
	results, err := p.evaluate(ctx, *policies, cache, subjectOf(bc), func(r policy.Result) {
		if bc.DryRun && len(l.others) < maxOthers {
			l.others = append(l.others, framework.Finding{Name: r.Policy, Verdict: string(r.Verdict), Message: r.Rule})
		}
	})
	if err != nil {
		return err
	}
	if l.asked, err = tasks.Read(ctx, cache, bc, results); err != nil {
		return err
	}
	l.results, l.writes = tasks.Decide(bc, results, l.asked)
	framework.Extend(bc, l)
	return nil
}

// PreFlight rejects the bind, lets it wait, or adds the annotations and labels of the policies.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	l, err := framework.Extension[looked](bc)
	if err != nil {
		return framework.Verdict{}, err
	}
	v, err := judge(l.results)
	v.Writes, v.Findings = l.writes, append(v.Findings, l.others...)
	return v, err
}

// BindWaits implements framework.Observer. BindDecided reports the results that are not a wait, once.
func (p *Plugin) BindWaits(_ context.Context, bc *framework.BindContext, _ []framework.Wait) {
	if l, err := framework.Extension[looked](bc); err == nil {
		p.report(bc, slices.DeleteFunc(slices.Clone(l.results), func(r policy.Result) bool { return r.Verdict != policy.Waiting }))
	}
}

// BindDecided implements framework.Observer.
func (p *Plugin) BindDecided(_ context.Context, bc *framework.BindContext) {
	if l, err := framework.Extension[looked](bc); err == nil && len(l.results) > 0 {
		p.report(bc, l.results)
		p.metrics.tasks.Observe(bc, l.asked)
	}
}

// PreBind creates the BindTasks that the bind needs. The store has the other methods of framework.PreBinder.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	l, err := framework.Extension[looked](bc)
	if err != nil {
		return err
	}
	return p.Store.PreBind(ctx, bc, l.asked)
}

func subjectOf(bc *framework.BindContext) *policy.Subject {
	return &policy.Subject{Pod: bc.Pod, Node: bc.Node, Binding: bc.Binding, User: bc.User, DryRun: bc.DryRun && !bc.Audit, Now: bc.Now, Since: bc.Since}
}

// evaluate evaluates the policies in order, and returns the results of those that apply. It passes the others to differs. An error means that
// the context ended.
func (p *Plugin) evaluate(ctx context.Context, policies []*entry, reader framework.Reader, s *policy.Subject, differs func(policy.Result)) ([]policy.Result, error) {
	o := &objects{reader: reader, system: p.h.Namespace, node: s.Node.Name, found: map[readKey]policy.List{}}
	var applied []policy.Result
	for _, e := range policies {
		o.entry = e
		r, err := e.compiled.Evaluate(ctx, s, o)
		if err != nil {
			return nil, framework.FromAPI(aboutPolicy(e.compiled.Name()), "evaluating it", err)
		}
		if r.Verdict == policy.NotMatched {
			differs(r)
		} else {
			applied = append(applied, r)
		}
	}
	return applied, nil
}

func aboutPolicy(name string) framework.Object {
	return framework.Object{Kind: v1alpha1.Kind.Kind, Name: name}
}

// report reports the results that are not only part of the answer: in the metrics and, for policies in mode Audit, in events.
func (p *Plugin) report(bc *framework.BindContext, results []policy.Result) {
	for _, r := range results {
		p.metrics.count(r)
		if note := auditText(r); note != "" {
			p.h.Events.Eventf(bc.Pod, reference(r.Policy, r.UID), corev1.EventTypeWarning, ReasonAudited, "Binding", "%s", text.Clip(note, maxNote))
		}
	}
}
