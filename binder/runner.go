// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/api"
)

// rollBackTimeout bounds one plugin's PreBindRollBack.
const rollBackTimeout = 30 * time.Second

// preFlight runs the PreFlight of every plugin, in order, and returns those
// whose PreBind has to run. The first error ends it.
func preFlight(ctx context.Context, plugins []api.PreBinder, bc *api.BindContext) ([]api.PreBinder, *api.Error) {
	var run []api.PreBinder
	for _, p := range plugins {
		checker, ok := p.(api.PreFlighter)
		if !ok {
			run = append(run, p)
			continue
		}
		next := api.Run
		err := contained(ctx, func() (err error) {
			next, err = checker.PreFlight(ctx, bc)
			return err
		})
		if err != nil {
			return nil, api.AsError(p.Name(), err)
		}
		if next == api.Run {
			run = append(run, p)
		}
	}
	return run, nil
}

// preBind runs the PreBind of the plugins in order; entering is told each name
// before. When one fails, those that were started are rolled back in reverse
// order, the failing one first, and its error is returned.
func preBind(ctx context.Context, plugins []api.PreBinder, bc *api.BindContext, entering func(plugin string)) *api.Error {
	for i, p := range plugins {
		entering(p.Name())
		err := contained(ctx, func() error { return p.PreBind(ctx, bc) })
		if err == nil {
			bc.Waiting(api.Waiting{})
			continue
		}
		if !errors.Is(context.Cause(ctx), errStopped) {
			rollBack(ctx, plugins[:i+1], bc)
		}
		return api.AsError(p.Name(), err)
	}
	return nil
}

// rollBack undoes the started plugins in reverse order. One that fails is
// logged and does not keep the others from being undone.
func rollBack(ctx context.Context, started []api.PreBinder, bc *api.BindContext) {
	log := klog.FromContext(ctx)
	for _, p := range slices.Backward(started) {
		// The attempt's own context may be the very reason for the failure.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollBackTimeout)
		err := contained(ctx, func() error { return p.PreBindRollBack(ctx, bc) })
		cancel()
		if err != nil {
			log.Error(err, "Rolling back a PreBind failed", "plugin", p.Name())
		}
	}
}

// contained calls f and makes an error of its panic, so that a plugin's mistake
// costs one bind and not the process.
func contained(ctx context.Context, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			klog.FromContext(ctx).Error(nil, "A plugin panicked", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("the plugin panicked (%v): this is a bug, Prebind's log has the stack", r)
		}
	}()
	return f()
}
