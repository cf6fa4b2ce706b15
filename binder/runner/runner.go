// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runner calls plugins. Each call is tracked, a panic of the plugin becomes an error, and calls that outlive the
// bind have a timeout.
package runner

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// outcomeTimeout limits one call of PostBind or PreBindRollBack.
	outcomeTimeout = 30 * time.Second
	// marksTimeout is how long a plugin may take to list its marks, and tidyTimeout to tidy.
	marksTimeout = 30 * time.Second
	tidyTimeout  = time.Minute
)

// Runner calls plugins after a bind, reads pods, and records events. All fields are required. It is safe for concurrent use.
type Runner struct {
	// Cached reads pods without a node from a cache, and Live reads pods from the API server.
	Cached, Live framework.Reader
	Tracker      Tracker
	Events       events.EventRecorder
}

// PostBind calls PostBind of the plugin.
func (r *Runner) PostBind(ctx context.Context, p framework.PreBinder, bc *framework.BindContext) error {
	ctx, cancel := context.WithTimeout(ctx, outcomeTimeout)
	defer cancel()
	return Call(ctx, r.Tracker, step(StepPostBind, p, bc), func(ctx context.Context) error { return p.PostBind(ctx, bc) })
}

// RollBack calls PreBindRollBack of the plugin, and records an event on the pod, which is the live one or nil.
func (r *Runner) RollBack(ctx context.Context, p framework.PreBinder, bc *framework.BindContext, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, outcomeTimeout)
	defer cancel()
	err := Call(ctx, r.Tracker, step(StepPreBindRollBack, p, bc), func(ctx context.Context) error { return p.PreBindRollBack(ctx, bc) })
	if err == nil && pod != nil && pod.UID == bc.Pod.UID {
		r.Report(pod, nil, corev1.EventTypeNormal, ReasonRolledBack,
			fmt.Sprintf("%s: Node %s: the pod was not bound, and the plugin released what it held", p.Name(), bc.Node.Name))
	}
	return err
}

// Marks returns the marks of the plugin. With an error, the list may be incomplete.
func (*Runner) Marks(ctx context.Context, p framework.PreBinder) (marks []framework.Mark, err error) {
	ctx, cancel := context.WithTimeout(ctx, marksTimeout)
	defer cancel()
	err = contained(ctx, func() (err error) {
		marks, err = p.Marks(ctx)
		return err
	})
	return marks, err
}

// Tidy calls Tidy of the plugin, if it has one.
func (*Runner) Tidy(ctx context.Context, p framework.Plugin) error {
	tidier, ok := p.(framework.Tidier)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tidyTimeout)
	defer cancel()
	return contained(ctx, func() error { return tidier.Tidy(ctx) })
}

func step(name string, p framework.PreBinder, bc *framework.BindContext) Step {
	s := Step{Name: name, Plugin: p.Name(), Attempt: bc.Attempt, Node: bc.Node.Name}
	s.Pod.Namespace, s.Pod.Name = bc.Pod.Namespace, bc.Pod.Name
	return s
}

// Call calls f as a step, and returns its panic as an error, so that a bug in a plugin fails one bind and not the process.
func Call(ctx context.Context, t Tracker, s Step, f func(ctx context.Context) error) error {
	ctx, done := t.Step(ctx, s)
	err := contained(ctx, func() error { return f(ctx) })
	done(err)
	return err
}

// contained calls f. A nil *framework.Error in an error is nil.
func contained(ctx context.Context, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			klog.FromContext(ctx).Error(nil, "Plugin panicked", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("the plugin panicked: %v; report the bug with the stack trace from Prebind's log", r)
		}
	}()
	err = f()
	if e, ok := err.(*framework.Error); ok && e == nil { //nolint:errorlint // Only this type, not a wrapped one.
		return nil
	}
	return err
}
