// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// outcomeTimeout limits one call of PostBind, PreBindRollBack or Marks, and tidyTimeout one of Tidy, during which no sweep runs.
	outcomeTimeout = 30 * time.Second
	tidyTimeout    = 20 * time.Second
)

// postBind calls PostBind of the plugin. The pod is the live one.
func (s *Set) postBind(ctx context.Context, p framework.PreBinder, m framework.Mark, bound *corev1.Pod) error {
	return s.afterBind(ctx, StepPostBind, p, m, func(ctx context.Context) error { return p.PostBind(ctx, m, bound) })
}

// rollBack calls PreBindRollBack of the plugin, and records an event on the pod, which is the live one or nil.
func (s *Set) rollBack(ctx context.Context, p framework.PreBinder, m framework.Mark, pod *corev1.Pod) error {
	err := s.afterBind(ctx, StepPreBindRollBack, p, m, func(ctx context.Context) error { return p.PreBindRollBack(ctx, m) })
	if err == nil && pod != nil && pod.UID == m.PodUID {
		// The recorder counts events with the same action and related object as one.
		s.o.Events.Eventf(pod, &corev1.ObjectReference{Kind: "Node", Name: m.Node}, corev1.EventTypeNormal, ReasonRolledBack, p.Name(),
			"%s: Node %s: this attempt did not bind the pod, and the plugin has released its reservations", p.Name(), m.Node)
	}
	return err
}

func (s *Set) afterBind(ctx context.Context, step string, p framework.PreBinder, m framework.Mark, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, outcomeTimeout)
	defer cancel()
	return Call(ctx, s.o.Recorder, Step{Name: step, Plugin: p.Name(), Pod: m.Pod, Node: m.Node, Attempt: m.Attempt}, f)
}

// Call calls f as a step, and returns its panic as an error, so that a bug in a plugin fails one bind and not the process.
func Call(ctx context.Context, r Recorder, s Step, f func(ctx context.Context) error) error {
	ctx, done := r.Step(ctx, s)
	err := Contain(ctx, func() error { return f(ctx) })
	done(err)
	return err
}

// Contain calls f, and returns its panic as an error. A nil *framework.Error in an error is nil.
func Contain(ctx context.Context, f func() error) (err error) {
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
