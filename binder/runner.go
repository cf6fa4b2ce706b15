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

// preFlight fills the extensions, then runs the PreFlight of every plugin, in
// order, and returns those whose PreBind has to run. The first error ends it.
func preFlight(ctx context.Context, t Tracker, plugins []framework.PreBinder, bc *framework.BindContext) ([]framework.PreBinder, *framework.Error) {
	if err := extend(ctx, plugins, bc); err != nil {
		return nil, err
	}
	var run []framework.PreBinder
	for _, p := range plugins {
		next, err := check(ctx, t, p, bc)
		if err != nil {
			return nil, err
		}
		if next == framework.Run {
			run = append(run, p)
		}
	}
	return run, nil
}

// extend fills the extensions, in order. The first error ends it.
func extend(ctx context.Context, plugins []framework.PreBinder, bc *framework.BindContext) *framework.Error {
	for _, p := range plugins {
		if extender, ok := p.(framework.BindContextExtender); ok {
			err := contained(ctx, func() error { return extender.SetupBindContextExtension(ctx, bc) })
			if err != nil {
				return framework.AsError(p.Name(), err)
			}
		}
	}
	return nil
}

// check runs the PreFlight of one plugin; one that has none always runs.
func check(ctx context.Context, t Tracker, p framework.PreBinder, bc *framework.BindContext) (framework.Next, *framework.Error) {
	checker, ok := p.(framework.PreFlighter)
	if !ok {
		return framework.Run, nil
	}
	next := framework.Run
	err := step(ctx, t, stepOf(StepPreFlight, p.Name(), bc), func(ctx context.Context) (err error) {
		next, err = checker.PreFlight(ctx, bc)
		return err
	})
	return next, framework.AsError(p.Name(), err)
}

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

// confirmAll lets the plugins take a last look, in order. The first error ends it.
func confirmAll(ctx context.Context, t Tracker, plugins []framework.PreBinder, bc *framework.BindContext) *framework.Error {
	for _, p := range plugins {
		confirmer, ok := p.(framework.Confirmer)
		if !ok {
			continue
		}
		err := step(ctx, t, stepOf(StepConfirm, p.Name(), bc), func(ctx context.Context) error { return confirmer.Confirm(ctx, bc) })
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
