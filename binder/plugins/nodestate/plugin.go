// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodestate is the PreBind plugin that checks the state of the node. Between the
// scheduler's decision and the bind, the node can be cordoned, tainted, relabelled, or
// deleted. The API server does not check this.
//
// For every bind, the plugin repeats the checks of kube-scheduler's node filters, and checks
// the expectations in annotations. It writes nothing. The decision is a pure function
// (decide.go) of the node in the cache, so a successful check needs no request.
package nodestate

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
)

// Plugin checks nodes; see New. It is safe for concurrent use.
type Plugin struct {
	h      framework.Handle
	args   *Arguments
	checks Checks
}

var (
	_ framework.PreBinder   = (*Plugin)(nil)
	_ framework.PreFlighter = (*Plugin)(nil)
	_ framework.Confirmer   = (*Plugin)(nil)
)

// New returns the plugin, or an error if the arguments are invalid. It starts nothing.
func New(h framework.Handle, args *Arguments) (*Plugin, error) {
	for _, p := range args.Validate() {
		return nil, fmt.Errorf("%s: %w", p.Field, p.Err)
	}
	checks, err := ParseChecks(args.Checks)
	return &Plugin{h: h, args: args, checks: checks}, err
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

// PreFlight skips the bind if the node passes all checks. Otherwise it rejects the bind, or
// waits if an annotation requests it.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	e, err := p.expectations(bc)
	if err != nil {
		return framework.Run, err
	}
	f := judge(bc.Pod, bc.Node, e, p.checks)
	switch {
	case f.none():
		return framework.Skip, nil
	case f.final() != nil || e.wait == 0:
		return framework.Run, refuse(bc, f, "")
	}
	waiting, err := bc.WaitAtMost(e.wait, framework.Waiting{Object: objectOf(bc), For: f.awaited()})
	if err != nil {
		return framework.Run, err
	}
	bc.Intend("%s would wait up to %s for %s", Name, e.wait, f.awaited())
	bc.ExpectWait(waiting)
	// The cache can be behind the state that the scheduler saw.
	return framework.Verify, nil
}

// PreBind waits until the node passes all checks.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	return framework.AwaitReady(ctx, p.h, bc, p)
}

// afterPreBind begins the messages of Confirm.
const afterPreBind = "after the bind was prepared: "

// Confirm repeats the checks, because the PreBind of other plugins can take minutes.
//
// It does not reject a bind that requests a wait, because volumes, for example, were created
// for this node. The client repeats the Binding, and the next attempt waits again.
func (p *Plugin) Confirm(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	e, err := p.expectations(bc)
	if err != nil {
		return err
	}
	node, err := framework.Get(ctx, reader, &corev1.Node{}, "", bc.Node.Name)
	if err != nil {
		return err
	}
	f := findings{}
	switch {
	case node == nil:
		f.add(gone)
	case node.UID != bc.Node.UID:
		f.add(replaced)
	default:
		f = judge(bc.Pod, node, e, p.checks)
	}
	switch {
	case f.none():
		return nil
	case f.final() != nil || e.wait == 0:
		return refuse(bc, f, afterPreBind)
	}
	return framework.Wait(objectOf(bc), "%s%s", afterPreBind, f).Advise("retry the Binding")
}

// expectations parses the annotations of the Binding and the pod.
func (p *Plugin) expectations(bc *framework.BindContext) (expectations, error) {
	return parse(framework.Parameters(Name, framework.ByBindingOrPod, bc.Binding, bc.Pod), p.args.MaxWait)
}

// refuse returns a rejection with the findings. The message begins with the prefix.
func refuse(bc *framework.BindContext, f findings, prefix string) *framework.Error {
	refused := framework.Refuse(objectOf(bc), "%s%s", prefix, f)
	if m := f.final(); m != nil {
		return refused.Because(m.cause).Advise("%s", m.final)
	}
	return refused.Advise("choose another node, or wait for this one with the annotation %s.%s/%s", Name, framework.Domain, keyWait)
}

func objectOf(bc *framework.BindContext) framework.Object {
	return framework.Object{Kind: "Node", Name: bc.Node.Name}
}
