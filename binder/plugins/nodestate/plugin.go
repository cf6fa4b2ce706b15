// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodestate is the PreBind plugin that keeps a pod from a node which is
// not, or is no more, what the scheduler took it for. Between a scheduler's look
// at a node and the bind a node is cordoned, tainted, relabelled or deleted; the
// API server binds all the same.
//
// It checks for every bind what kube-scheduler's own filters check of the node,
// and what the scheduler says by annotations that it believed. It writes nothing.
// It decides by a pure function (decide.go) on the node that the engine read from
// the cache, so that a bind where all is well costs no read at all.
package nodestate

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Name of the plugin.
const Name = "node-state"

// Options of the plugin. All fields but Checks and Clock are required.
type Options struct {
	// Cached reads nodes from a cache. What it returns is never changed.
	Cached Getter
	// Live reads them from the API server, before anything is refused by what the
	// cache says.
	Live Getter
	// Changes wakes the plugin when a node of the cache changes.
	Changes *framework.Hub
	// Clock times the waits. It is the real one by default.
	Clock clock.Clock
	// Domain of the annotations: they are node-state.<domain>/<key>.
	Domain string
	// Checks are those that are switched on.
	Checks Checks
	// MaxWait is the most that the annotation wait can ask for.
	MaxWait time.Duration
}

// Getter reads one object by its key; client.Reader is one.
type Getter interface {
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
}

// Plugin checks nodes; see New.
type Plugin struct{ o Options }

var (
	_ framework.PreBinder   = (*Plugin)(nil)
	_ framework.PreFlighter = (*Plugin)(nil)
	_ framework.Confirmer   = (*Plugin)(nil)
)

// New checks the options and returns the plugin. It starts nothing.
func New(o Options) (*Plugin, error) {
	if o.Cached == nil || o.Live == nil || o.Changes == nil || o.Domain == "" {
		return nil, errors.New(Name + ": Cached, Live, Changes and Domain are required")
	}
	if o.MaxWait <= 0 {
		return nil, fmt.Errorf("%s: MaxWait is %s, it must be positive", Name, o.MaxWait)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Plugin{o: o}, nil
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

// PreFlight lets a bind pass whose node is as it has to be. A node that is not is
// read live, for the cache may be behind what the scheduler saw; then the bind is
// refused, or waits if it was asked to.
func (p *Plugin) PreFlight(ctx context.Context, bc *framework.BindContext) (framework.Next, error) {
	e, err := p.expectations(bc)
	if err != nil {
		return framework.Run, err
	}
	if judge(bc.Pod, bc.Node, e, p.o.Checks).none() {
		return framework.Skip, nil
	}
	f, err := p.look(ctx, p.o.Live, bc, e)
	switch {
	case err != nil:
		return framework.Run, err
	case f.none():
		return framework.Skip, nil
	case f.is(replaced):
		// It is the cache that is behind. The scheduler may well mean the new node,
		// and all plugins should see it.
		return framework.Run, framework.Wait(objectOf(bc), "%s, and Prebind has not heard of the new one yet", replaced.found).
			Advise("repeat the Binding")
	case f.final() != nil || e.wait == 0:
		return framework.Run, p.refuse(bc, f, "")
	}
	bc.Intend("%s would wait up to %s for %s", Name, e.wait, f.awaited())
	bc.WouldWait(framework.Waiting{Object: objectOf(bc), For: f.awaited()})
	return framework.Run, nil
}

// PreBind waits until the node is as it has to be. It runs only where that is
// asked for, and the node was not.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	e, err := p.expectations(bc)
	if err != nil {
		return err
	}
	return p.wait(ctx, bc, e)
}

// PreBindRollBack has nothing to undo.
func (*Plugin) PreBindRollBack(context.Context, *framework.BindContext) error { return nil }

// afterPreBind begins what Confirm says.
const afterPreBind = "after the bind was prepared: "

// Confirm looks once more: while other plugins prepared the bind, which may take
// minutes, the node may have changed.
//
// A bind that was asked to wait is not refused then. Its volumes, say, were made
// for this very node, so that another node would be worse than another wait: the
// client is told to call again, and the repeated call waits anew.
func (p *Plugin) Confirm(ctx context.Context, bc *framework.BindContext) error {
	e, err := p.expectations(bc)
	if err != nil {
		return err
	}
	f, err := p.look(ctx, p.o.Cached, bc, e)
	if err != nil || !f.none() {
		f, err = p.look(ctx, p.o.Live, bc, e)
	}
	switch {
	case err != nil:
		return err
	case f.none():
		return nil
	case f.final() != nil || e.wait == 0:
		return p.refuse(bc, f, afterPreBind)
	}
	return framework.Wait(objectOf(bc), "%s%s", afterPreBind, f).
		Advise("the repeated Binding waits for it again")
}

// expectations reads what the Binding and the pod ask for.
func (p *Plugin) expectations(bc *framework.BindContext) (expectations, error) {
	return parse(framework.Parameters(p.o.Domain, Name, framework.ByBindingOrPod, bc.Binding, bc.Pod), p.o.MaxWait)
}

// look reads the node and judges it. A node of another UID is another one than
// that of the bind.
func (p *Plugin) look(ctx context.Context, from Getter, bc *framework.BindContext, e expectations) (findings, error) {
	node := &corev1.Node{}
	err := from.Get(ctx, client.ObjectKey{Name: bc.Node.Name}, node, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return findings{list: []mismatch{gone}}, nil
	case err != nil:
		return findings{}, framework.FromAPI(objectOf(bc), "reading it", err)
	case node.UID != bc.Node.UID:
		return findings{list: []mismatch{replaced}}, nil
	}
	return judge(bc.Pod, node, e, p.o.Checks), nil
}

// refuse says what was expected and what was found; prefix says when.
func (p *Plugin) refuse(bc *framework.BindContext, f findings, prefix string) *framework.Error {
	refused := framework.Refuse(objectOf(bc), "%s%s", prefix, f)
	if m := f.final(); m != nil {
		return refused.Because(m.cause).Advise("%s", m.final)
	}
	return refused.Advise("choose another node, or let the bind wait with the annotation %s.%s/%s", Name, p.o.Domain, keyWait)
}

func objectOf(bc *framework.BindContext) framework.Object {
	return framework.Object{Kind: "Node", Name: bc.Node.Name}
}
