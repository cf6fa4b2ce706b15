// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package binder decides what becomes of a Binding before the API server
// carries it out. It knows nothing of HTTP.
//
// The way of a bind: guards, mutators, the check of the merged metadata, the
// PreFlight of every plugin, and, where a plugin has something to do, an attempt
// that runs their PreBind and outlives the call.
package binder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
	"github.com/prebind/prebind/mutators"
)

// Getter reads one object by its key; client.Reader is one.
type Getter interface {
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
}

// Options of an Engine. All fields are required but Plugins.
type Options struct {
	// Cached reads pods that are not bound yet, and nodes, from a cache. What it
	// returns is never changed.
	Cached Getter
	// Live reads the same from the API server, when the cache has nothing or
	// says something that would end the bind.
	Live Getter
	// Mutators run on every Binding.
	Mutators *mutators.Chain
	// Plugins are the PreBind plugins in the order in which they run.
	Plugins []api.PreBinder
	// Hold is how long a call is kept waiting at most before the client is told
	// to call again.
	Hold time.Duration
	// MaxHolds is how many calls are kept waiting at a time; a call over that is
	// told at once to call again. Each one holds a seat of the API server.
	MaxHolds int
	// PreBindTimeout bounds one attempt over all its calls.
	PreBindTimeout time.Duration
	Clock          clock.WithDelayedExecution
}

func (o Options) validate() error {
	switch {
	case o.Cached == nil || o.Live == nil || o.Mutators == nil || o.Clock == nil:
		return errors.New("engine: Cached, Live, Mutators and Clock are required")
	case o.Hold <= 0:
		return fmt.Errorf("engine: Hold is %s, it must be positive", o.Hold)
	case o.MaxHolds <= 0:
		return fmt.Errorf("engine: MaxHolds is %d, it must be positive", o.MaxHolds)
	case o.PreBindTimeout <= 0:
		return fmt.Errorf("engine: PreBindTimeout is %s, it must be positive", o.PreBindTimeout)
	}
	seen := map[string]bool{}
	for _, p := range o.Plugins {
		if seen[p.Name()] {
			return fmt.Errorf("engine: plugin %q is registered twice", p.Name())
		}
		seen[p.Name()] = true
	}
	return nil
}

// Engine decides on Bindings. It is safe for concurrent use.
type Engine struct {
	o        Options
	attempts *attempts
	holds    chan struct{}
	// draining is closed by drain.
	draining chan struct{}
	drain    func()
}

// New checks the options and returns the engine. It starts nothing.
func New(o Options) (*Engine, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	draining := make(chan struct{})
	return &Engine{
		o:        o,
		attempts: &attempts{clock: o.Clock, budget: o.PreBindTimeout, byKey: map[attemptKey]*attempt{}},
		holds:    make(chan struct{}, o.MaxHolds),
		draining: draining,
		drain:    sync.OnceFunc(func() { close(draining) }),
	}, nil
}

// Drain ends every hold: the calls that wait are told to call again, and so is
// every later one. It cannot be undone.
func (e *Engine) Drain() { e.drain() }

// Stop drains, ends the attempts where they are, and waits for them. Call it when
// no Bind is under way any more.
func (e *Engine) Stop() {
	e.drain()
	e.attempts.stop()
}

// Bind decides on one Binding. It returns within the hold and before the
// context's deadline.
func (e *Engine) Bind(ctx context.Context, r Request) Decision {
	if !targetsNode(r.Binding) {
		return Decision{PassThrough: true}
	}
	pod, err := e.pod(ctx, r)
	switch {
	case err != nil:
		return denied(err)
	case pod == nil:
		return Decision{PassThrough: true}
	}
	if e.idle() {
		if err := guardMerged(pod, r.Binding, nil); err != nil {
			return denied(err)
		}
		return Decision{PassThrough: true}
	}
	node, err := e.node(ctx, r.Binding.Target.Name)
	if err != nil {
		return denied(err)
	}

	added := e.o.Mutators.Mutate(mutators.Input{Pod: pod, Node: node, Binding: r.Binding})
	d := Decision{Annotations: added.Annotations, Warnings: mutatorWarnings(added)}
	if r.Binding.UID == "" {
		d.UID = pod.UID
	}
	if err := guardMerged(pod, r.Binding, added.Annotations); err != nil {
		return denied(err)
	}
	bc := &api.BindContext{Pod: pod, Node: node, Binding: r.Binding, User: r.User, DryRun: r.DryRun}
	return e.prepare(ctx, bc, d)
}

// idle says that nothing is switched on, so that Bindings pass unchanged.
func (e *Engine) idle() bool { return e.o.Mutators.Len() == 0 && len(e.o.Plugins) == 0 }

// prepare runs the plugins: it joins the attempt that is under way, or checks
// by PreFlight and begins one.
func (e *Engine) prepare(ctx context.Context, bc *api.BindContext, d Decision) Decision {
	key := attemptKey{pod: bc.Pod.UID, node: bc.Node.Name}
	var a *attempt
	if !bc.DryRun {
		a = e.attempts.join(key)
	}
	if a == nil {
		run, err := preFlight(ctx, e.o.Plugins, bc)
		switch {
		case err != nil:
			return denied(err)
		case bc.DryRun:
			for _, intent := range bc.Intents() {
				d.Warnings = append(d.Warnings, "dry run: "+intent)
			}
			return d
		case len(run) == 0:
			return d
		}
		a = e.attempts.start(ctx, key, run, bc)
	}
	if !e.hold(ctx, a) {
		d.Err, d.RetryAfter = a.waiting(e.o.Clock.Now()), e.attempts.retryAfter(a)
		return d
	}
	if d.Err = a.err; d.Err != nil {
		if d.Err.Kind == api.KindWait {
			d.RetryAfter = e.attempts.retryAfter(a)
		}
		e.attempts.forget(a)
	}
	return d
}

// hold waits for the end of the attempt and says whether it came.
func (e *Engine) hold(ctx context.Context, a *attempt) bool {
	ended := func() bool {
		select {
		case <-a.done:
			return true
		default:
			return false
		}
	}
	select {
	case e.holds <- struct{}{}:
		defer func() { <-e.holds }()
	default:
		return ended()
	}
	timer := e.o.Clock.NewTimer(e.o.Hold)
	defer timer.Stop()
	select {
	case <-a.done:
	case <-timer.C():
	case <-ctx.Done():
	case <-e.draining:
	}
	return ended()
}

// pod returns the pod to be bound. It returns nil when it is gone or bound: the
// API server then gives its own answer.
func (e *Engine) pod(ctx context.Context, r Request) (*corev1.Pod, *api.Error) {
	pod := &corev1.Pod{}
	if err := e.o.Cached.Get(ctx, r.Pod, pod); err == nil && pod.Spec.NodeName == "" && guardPod(pod, r.Binding) == nil {
		return pod, nil
	}
	// The cache lacks the pod, or what it holds would end the bind. It may be
	// behind, so the API server has the last word.
	pod = &corev1.Pod{}
	if err := e.o.Live.Get(ctx, r.Pod, pod); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, e.unreadable(api.Object{Kind: "Pod", Namespace: r.Pod.Namespace, Name: r.Pod.Name}, err)
	}
	if pod.Spec.NodeName != "" {
		return nil, nil
	}
	return pod, guardPod(pod, r.Binding)
}

// node returns the target.
func (e *Engine) node(ctx context.Context, name string) (*corev1.Node, *api.Error) {
	key := types.NamespacedName{Name: name}
	object := api.Object{Kind: "Node", Name: name}
	node := &corev1.Node{}
	if err := e.o.Cached.Get(ctx, key, node); err == nil {
		return node, nil
	}
	node = &corev1.Node{}
	if err := e.o.Live.Get(ctx, key, node); apierrors.IsNotFound(err) {
		refused := api.Refuse(object, "there is no such node").Advise("choose another")
		refused.Plugin = guardName
		return nil, refused
	} else if err != nil {
		return nil, e.unreadable(object, err)
	}
	return node, nil
}

func (e *Engine) unreadable(object api.Object, err error) *api.Error {
	return api.AsError(guardName, api.FromAPI(object, "reading it from the API server", err).
		Advise("see whether the API server answers and whether Prebind may read it"))
}

func mutatorWarnings(r mutators.Result) []string {
	var warnings []string
	for _, c := range r.Replaced {
		warnings = append(warnings, fmt.Sprintf("%s: the %s's value of the annotation %s is replaced", c.Mutator, c.Source, c.Key))
	}
	for _, f := range r.Failures {
		warnings = append(warnings, fmt.Sprintf("%s: its annotations are left out: %v", f.Mutator, f.Err))
	}
	return warnings
}
