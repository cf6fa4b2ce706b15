// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/loop"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/binder/work"
)

// call is one Request on its way through the engine.
type call struct {
	*Engine
	Request
	// policy is what the settings say of the pod's namespace.
	policy policy
	// audit is set if Request.DryRun is because of the mode Audit.
	audit bool
	began time.Time

	key work.Key
	// pod and node are those of the last pass.
	pod  *corev1.Pod
	node *corev1.Node
	// first is the time of the first call for the bind, and calls is the number of earlier ones.
	first time.Time
	calls int
	// budget is the time that the bind has from the first call on.
	budget time.Duration
	// final is the decision if the API server gives its own answer about the pod.
	final *Decision
	// composed is the decision that allows the bind.
	composed Decision
	hold     hold
}

// run runs the loop of the call.
func (c *call) run(ctx context.Context) Decision {
	defer c.hold.release()
	o := c.loop.Run(ctx, loop.Bind{
		Key: c.key, Pod: c.Pod, Binding: c.Binding, User: c.User, DryRun: c.DryRun, Audit: c.audit, First: c.first,
		Look: c.look, Hold: c.settings.Hold, Seat: func() bool { return c.take(ctx) }, Waits: c.awaits, Draining: c.draining, Answer: c.compose,
	})
	switch {
	case c.final != nil:
		c.waits.forget(c.key)
		return *c.final
	case c.DryRun:
		return c.rehearsed(ctx, o)
	case o.Err != nil:
		return c.later(o)
	}
	c.waits.forget(c.key)
	c.composed.Attempt = o.Attempt
	return c.composed
}

// later denies. If the client has to wait, the decision says for how long, and the call counts as one that had to wait.
func (c *call) later(o loop.Outcome) Decision {
	d := denied(framework.AsError(framework.Binder, o.Err))
	d.Attempt, d.Warnings = o.Attempt, warningsOf(o.Results)
	if o.Err.Kind == framework.KindWait {
		d.RetryAfter = max(o.RetryAfter, time.Second)
		c.waits.change(c.key, c.began, func(w *waited) {
			w.calls++
			w.pod, w.waiting, w.budget = c.Pod, d.Err, c.budget
			if w.wait = o.Wait; w.wait.For == "" {
				w.wait = framework.Wait{Object: d.Err.Object, For: d.Err.Message}
			}
		})
	} else {
		c.waits.reject(c.key)
	}
	return d
}

// look reads what the engine needs for a pass. The pod must be the one of the first pass, and so must the node.
func (c *call) look(ctx context.Context) (loop.View, *framework.Error) {
	pod, err := c.pod, (*framework.Error)(nil)
	if c.node != nil { // The call has just read the pod for the first pass.
		pod, err = c.reader.pod(ctx, c.Request)
	}
	switch {
	case err != nil:
		return loop.View{}, err
	case unbindable(pod, c.Binding) || pod.UID != c.key.Pod:
		d := rejectedBy(pod, c.Binding)
		if d.UID != "" {
			// The API server must reject it: it was not checked.
			d.UID = c.key.Pod
		}
		c.final = &d
		return loop.View{}, framework.Stale(podObject(c.Pod), "changed during the bind").Advise("discard the Binding")
	}
	c.pod = pod
	if err := guardMerged(pod, c.Binding, nil, nil, c.mayCome()); err != nil {
		return loop.View{}, err
	}
	given := framework.Parameters(framework.Binder, c.Binding, pod)
	required, err := requiredPlugins(c.settings.Plugins, given)
	if err != nil {
		return loop.View{}, err
	}
	budget, err := budgetOf(c.policy, given)
	if err != nil {
		return loop.View{}, err
	}
	c.budget = budget
	node, err := c.reader.node(ctx, c.key.Node)
	switch {
	case err != nil:
		return loop.View{}, err
	case c.node != nil && c.node.UID != node.UID:
		return loop.View{}, framework.AsError(framework.Binder,
			framework.Refuse(framework.Object{Kind: "Node", Name: node.Name}, "the node was deleted and recreated").Advise("schedule the pod again"))
	}
	c.node = node
	return loop.View{Pod: pod, Node: node, Plugins: takingPart(c.settings.Plugins, required, c.Binding, pod), Budget: budget}, nil
}

// warningsOf returns the warnings of plugins, each once, within the limits of a decision.
func warningsOf(results []loop.Result) []string {
	var all []string
	for _, r := range results {
		for _, w := range r.Verdict.Warnings {
			if w = runner.Clip(w, maxMessage); len(all) < maxWarnings && !slices.Contains(all, w) {
				all = append(all, w)
			}
		}
	}
	return all
}
