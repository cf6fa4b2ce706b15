// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"runtime/debug"

	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

// preBind runs the PreBind of the plugins in order and returns the first error;
// entering is told each plugin before.
func preBind(ctx context.Context, t Tracker, plugins []framework.PreBinder, bc *framework.BindContext, entering func(framework.PreBinder)) *framework.Error {
	for _, p := range plugins {
		entering(p)
		err := step(ctx, t, stepOf(StepPreBind, p.Name(), bc), func(ctx context.Context) error { return p.PreBind(ctx, bc) })
		if err != nil {
			return framework.AsError(p.Name(), err)
		}
		bc.Waiting(framework.Waiting{})
	}
	return nil
}

// confirmAll lets the plugins check once more, in order. The first error ends it. An
// error that a plugin returns for the cached reader counts only if it returns one for the
// live reader too.
func confirmAll(ctx context.Context, o *Options, plugins []framework.PreBinder, bc *framework.BindContext) *framework.Error {
	for _, p := range plugins {
		confirmer, ok := p.(framework.Confirmer)
		if !ok {
			continue
		}
		err := step(ctx, o.Recorder, stepOf(StepConfirm, p.Name(), bc), func(ctx context.Context) error {
			err := confirmer.Confirm(ctx, o.Cached, bc)
			if err != nil && ctx.Err() == nil {
				bc.Live = true
				defer func() { bc.Live = false }()
				err = confirmer.Confirm(ctx, o.liveFor(p.Name()), bc)
			}
			return err
		})
		if err != nil {
			return framework.AsError(p.Name(), err)
		}
	}
	return nil
}

// step calls f, which is one call of a plugin, contained and tracked.
func step(ctx context.Context, t Tracker, s Step, f func(ctx context.Context) error) error {
	ctx, done := t.Step(ctx, s)
	err := contained(ctx, func() error { return f(ctx) })
	done(err)
	return err
}

// contained calls f and makes an error of its panic, so that a plugin's mistake
// costs one bind and not the process. A nil *framework.Error in an error is nil.
func contained(ctx context.Context, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			klog.FromContext(ctx).Error(nil, "A plugin panicked", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("the plugin panicked (%v): this is a bug, Prebind's log has the stack", r)
		}
	}()
	err = f()
	if e, ok := err.(*framework.Error); ok && e == nil { //nolint:errorlint // It is this very type, not one that wraps it.
		return nil
	}
	return err
}
