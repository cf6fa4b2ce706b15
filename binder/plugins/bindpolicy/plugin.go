// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bindpolicy is the PreBind plugin that applies BindPolicies. It evaluates all policies for every
// bind. If one rejects the bind, the plugin rejects it. Otherwise, the bind waits until no policy delays it, and
// the pod gets the annotations and labels of all policies.
//
// The policies in force are an immutable snapshot (set.go). A goroutine compiles new generations, adds their
// watches, and replaces the snapshot (controller.go, prepare.go). The leader writes the status of the policies
// (status.go). A bind never compiles an expression, and reads only the cache unless a policy rejects or
// delays it.
package bindpolicy

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Plugin applies BindPolicies. It is safe for concurrent use.
type Plugin struct {
	h       framework.Handle
	args    *Arguments
	metrics *metrics
	waiter  *framework.Waiter
	// set contains the policies in force. It is nil before the first pass.
	set     atomic.Pointer[set]
	sharing sharing
	// waived contains the waits of each bind that timed out with Allow, by bindKey.
	waived *cache.Expiring
	// synced is HasSynced.
	synced atomic.Bool
	// compiling limits the policies that are compiled at the same time. compile is a variable for tests.
	compiling chan struct{}
	compile   func(*v1alpha1.BindPolicy, policy.Options) (*policy.Compiled, error)
}

var (
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.PreFlighter         = (*Plugin)(nil)
	_ framework.Confirmer           = (*Plugin)(nil)
	_ framework.Starter             = (*Plugin)(nil)
)

func newPlugin(h framework.Handle, a *Arguments, m *metrics) *Plugin {
	p := &Plugin{h: h, args: a, metrics: m, compiling: make(chan struct{}, maxCompiles), compile: compile, waived: cache.NewExpiringWithClock(h.Clock)}
	p.waiter = framework.NewWaiter(Name, h, p.look)
	return p
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

// evaluated is the result of one policy that applies to a bind.
type evaluated struct {
	entry  *entry
	result policy.Result
}

// results are the results of the policies that apply to a bind, in the order of the policies.
type results []evaluated

// resultsKey is the extension with the results of the last look.
var resultsKey = framework.NewExtensionKey[results](Name + "/results")

// SetupBindContextExtension evaluates the policies.
func (p *Plugin) SetupBindContextExtension(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	return p.waiter.SetupBindContextExtension(ctx, reader, bc)
}

// PreFlight rejects the bind, skips it, or lets it wait.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	next, err := p.waiter.PreFlight(bc)
	if err == nil || bc.Live {
		// The engine repeats a rejection with live objects.
		p.decided(bc)
	}
	return next, err
}

// PreBind waits until no policy delays the bind.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	var last results
	waiter := framework.NewWaiter(Name, p.h, func(ctx context.Context, reader framework.Reader, bc *framework.BindContext) (framework.Waiting, error) {
		waiting, err := p.look(ctx, reader, bc)
		last = resultsOf(bc)
		return waiting, err
	}).WokenBy(inForceChanged)
	err := waiter.PreBind(ctx, bc)
	if waived := last.waived(); err == nil && waived != nil {
		p.waived.Set(bindKey{bc.Pod.UID, bc.Node.UID}, waived, waivedFor)
	} else {
		p.waived.Delete(bindKey{bc.Pod.UID, bc.Node.UID})
	}
	if refusal, waiting := judge(last); refusal != nil || err == nil && waiting == (framework.Waiting{}) {
		last.count()
	}
	return err
}

// waivedFor is how long a wait that timed out with Allow stays allowed for a bind. It is longer than the time between
// two calls of a client.
const waivedFor = 5 * time.Minute

// bindKey identifies a bind.
type bindKey struct{ pod, node types.UID }

// waivedOf returns the waits that timed out with Allow in an earlier PreBind of the bind. The timeout can end
// between two calls, and the next call must not wait again.
func (p *Plugin) waivedOf(bc *framework.BindContext) map[policy.WaitID]bool {
	if found, ok := p.waived.Get(bindKey{bc.Pod.UID, bc.Node.UID}); ok {
		if waived, ok := found.(map[policy.WaitID]bool); ok {
			return waived
		}
	}
	return nil
}

// Confirm evaluates the rejections again, because the PreBind of other plugins can take minutes.
func (p *Plugin) Confirm(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	policies := p.inForce()
	if len(policies) == 0 {
		return nil
	}
	pod, node, err := framework.Present(ctx, reader, bc)
	if err != nil {
		return err
	}
	applied, err := evaluate(ctx, policies, reader, subjectOf(bc, pod, node, p.h.Clock.Now()), (*policy.Compiled).Confirm)
	if err != nil {
		return err
	}
	if refusal, _ := judge(applied); refusal != nil {
		refusal.Message = "after the bind was prepared: " + refusal.Message
		return refusal
	}
	return nil
}

// inForce returns the policies in force.
func (p *Plugin) inForce() set {
	if s := p.set.Load(); s != nil {
		return *s
	}
	return nil
}

// look evaluates all policies. It is a framework.BindLook.
func (p *Plugin) look(ctx context.Context, reader framework.Reader, bc *framework.BindContext) (framework.Waiting, error) {
	resultsKey.Set(bc, nil)
	policies := p.inForce()
	if len(policies) == 0 {
		return framework.Waiting{}, nil
	}
	subject := subjectOf(bc, bc.Pod, bc.Node, bc.Now)
	subject.Waived = p.waivedOf(bc)
	applied, err := evaluate(ctx, policies, reader, subject, (*policy.Compiled).Evaluate)
	if err != nil {
		return framework.Waiting{}, err
	}
	resultsKey.Set(bc, applied)
	explain(bc, applied)
	refusal, waiting := judge(applied)
	switch {
	case refusal != nil:
		return framework.Waiting{}, refusal
	case waiting == framework.Waiting{}:
		mutate(bc, applied)
	default:
		bc.Intend("%s would wait for %s", Name, waiting.For)
	}
	return waiting, nil
}

func subjectOf(bc *framework.BindContext, pod *corev1.Pod, node *corev1.Node, now time.Time) *policy.Subject {
	return &policy.Subject{Pod: pod, Node: node, Binding: bc.Binding, User: bc.User, DryRun: bc.DryRun, Now: now, Since: bc.Since}
}

// evaluation is Evaluate or Confirm of a policy.
type evaluation func(c *policy.Compiled, ctx context.Context, s *policy.Subject, o policy.Objects) (policy.Result, error)

// evaluate evaluates the policies in order, and returns the results of those that apply. An error means that objects
// could not be read.
func evaluate(ctx context.Context, policies set, reader framework.Reader, s *policy.Subject, by evaluation) ([]evaluated, error) {
	o := &objects{reader: reader, pod: s.Pod, node: s.Node.Name}
	var applied []evaluated
	for _, e := range policies {
		o.reads = &e.reads
		r, err := e.result(ctx, s, o, by)
		if err != nil {
			if typed, ok := errors.AsType[*framework.Error](err); ok {
				return nil, typed
			}
			return nil, framework.FromAPI(aboutPolicy(e.name), "evaluating it", err)
		}
		if r.Verdict != policy.NotMatched {
			applied = append(applied, evaluated{entry: e, result: r})
		}
	}
	return applied, nil
}

// result returns the result of the policy. A policy that cannot be evaluated delays the binds that it selects.
func (e *entry) result(ctx context.Context, s *policy.Subject, o *objects, by evaluation) (policy.Result, error) {
	if e.unwatched == "" {
		return by(e.compiled, ctx, s, o)
	}
	// If the Namespace cannot be read either, the policy may select the bind.
	if selects, err := e.compiled.Selects(ctx, s, o); err == nil && !selects || ctx.Err() != nil {
		return policy.Result{Policy: e.name, Verdict: policy.NotMatched}, ctx.Err()
	}
	return policy.Result{Policy: e.name, Verdict: policy.Waiting, Rule: "spec.resources", Message: "waiting for " + e.unwatched}, nil
}

func aboutPolicy(name string) framework.Object {
	return framework.Object{Kind: v1alpha1.Kind.Kind, Name: name}
}

// resultsOf returns the results of the last look of the context, or nil.
func resultsOf(bc *framework.BindContext) results {
	r, err := resultsKey.Get(bc)
	if err != nil {
		return nil
	}
	return r
}

// waived returns the waits that timed out with Allow.
func (r results) waived() map[policy.WaitID]bool {
	var all map[policy.WaitID]bool
	for _, e := range r {
		for _, name := range e.result.Waived {
			if all == nil {
				all = map[policy.WaitID]bool{}
			}
			all[e.entry.compiled.WaitID(name)] = true
		}
	}
	return all
}

// decided reports the results of a decision: in the metrics and, for policies in mode Audit, in events.
func (p *Plugin) decided(bc *framework.BindContext) {
	if bc.DryRun {
		return
	}
	r := resultsOf(bc)
	r.count()
	if p.h.Events == nil {
		return
	}
	for _, e := range r {
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
