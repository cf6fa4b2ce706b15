// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodestate is the PreBind plugin that keeps a pod from a node that is not, or
// no longer, as the scheduler saw it. Between a scheduler's look at a node and the bind,
// the node can be cordoned, tainted, relabelled or deleted; the API server binds all the
// same.
//
// For every bind, it checks what kube-scheduler's own filters check of the node, and
// what the scheduler expects of it by annotations. It writes nothing. It decides by a
// pure function (decide.go) on the node that the engine has read from the cache, so a
// bind to a node that is as expected costs no read.
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

// PreFlight skips a bind to a node that is as it has to be. Otherwise it rejects the
// bind, or waits if the Binding or the pod asks for that.
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
	case bc.Now.Sub(bc.Since) >= e.wait:
		return framework.Run, framework.Refuse(objectOf(bc), "after a wait of %s: %s", e.wait, f).Advise("choose another node")
	}
	bc.Intend("%s would wait up to %s for %s", Name, e.wait, f.awaited())
	bc.WouldWait(framework.Waiting{Object: objectOf(bc), For: f.awaited(), Until: bc.Since.Add(e.wait)})
	// The cache can be behind what the scheduler saw: then there is nothing to wait for.
	return framework.Verify, nil
}

// PreBind waits until the node is as it has to be.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	return framework.AwaitReady(ctx, p.h, bc, p)
}

// afterPreBind begins the messages of Confirm.
const afterPreBind = "after the bind was prepared: "

// Confirm checks once more: while other plugins prepared the bind, which can take
// minutes, the node can have changed.
//
// It does not reject a bind that asks to wait. Its volumes, for example, were created for
// this node, so that another node would be worse than another wait: the client has to
// call again, and the repeated call waits again.
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
	return framework.Wait(objectOf(bc), "%s%s", afterPreBind, f).Advise("the repeated Binding waits for it again")
}

// expectations reads what the Binding and the pod ask for.
func (p *Plugin) expectations(bc *framework.BindContext) (expectations, error) {
	return parse(framework.Parameters(framework.Domain, Name, framework.ByBindingOrPod, bc.Binding, bc.Pod), p.args.MaxWait)
}

// refuse says what was expected and what was found; prefix says when.
func refuse(bc *framework.BindContext, f findings, prefix string) *framework.Error {
	refused := framework.Refuse(objectOf(bc), "%s%s", prefix, f)
	if m := f.final(); m != nil {
		return refused.Because(m.cause).Advise("%s", m.final)
	}
	return refused.Advise("choose another node, or let the bind wait with the annotation %s.%s/%s", Name, framework.Domain, keyWait)
}

func objectOf(bc *framework.BindContext) framework.Object {
	return framework.Object{Kind: "Node", Name: bc.Node.Name}
}
