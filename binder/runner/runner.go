// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runner calls plugins for the engine, for attempts and for the sweeper. Each call
// is tracked, a panic of the plugin becomes an error, and calls that outlive the bind have a
// timeout.
package runner

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// rollBackTimeout and postBindTimeout limit one call of a plugin.
	rollBackTimeout = 30 * time.Second
	postBindTimeout = 30 * time.Second
	// marksTimeout is how long a plugin may take to list its marks, and tidyTimeout to tidy.
	marksTimeout = 30 * time.Second
	tidyTimeout  = time.Minute
)

// Runner calls plugins. All fields but CachedFor are required. It is safe for concurrent use.
type Runner struct {
	// Cached reads pods without a node, nodes, and what plugins watch, from a cache. Live
	// reads the same from the API server.
	Cached, Live framework.Reader
	// CachedFor returns the cached reader of a plugin, by its name. It may be nil: then all
	// plugins read through Cached.
	CachedFor func(plugin string) framework.Reader
	Tracker   Tracker
	Events    events.EventRecorder
}

// PreFlight calls Setup and PreFlight of a plugin once, with the live reader if live is
// set, otherwise with the cached one. A plugin that has neither always runs.
func (r *Runner) PreFlight(ctx context.Context, p framework.PreBinder, live bool, bc *framework.BindContext) (framework.Next, *framework.Error) {
	extender, extends := p.(framework.BindContextExtender)
	checker, checks := p.(framework.PreFlighter)
	if !extends && !checks {
		return framework.Run, nil
	}
	reader := r.cachedFor(p)
	if live {
		reader = r.liveFor(p)
	}
	next := framework.Run
	err := r.call(ctx, StepPreFlight, p, bc, func(ctx context.Context) (err error) {
		if extends {
			err = extender.SetupBindContextExtension(ctx, reader, bc)
		}
		if checks && err == nil {
			next, err = checker.PreFlight(bc)
		}
		return err
	})
	return next, framework.AsError(p.Name(), err)
}

// Take calls Take of a plugin. It returns false if the plugin is not a Taker or panics.
func (r *Runner) Take(ctx context.Context, p framework.PreBinder, bc *framework.BindContext) bool {
	taker, ok := p.(framework.Taker)
	if !ok {
		return false
	}
	taken := false
	err := contained(ctx, func() error {
		taken = taker.Take(ctx, bc)
		return nil
	})
	return taken && err == nil
}

// PreBind calls PreBind of the plugins in order and returns the first error. It calls
// entering before each plugin.
func (r *Runner) PreBind(ctx context.Context, plugins []framework.PreBinder, bc *framework.BindContext, entering func(framework.PreBinder)) *framework.Error {
	for _, p := range plugins {
		entering(p)
		err := r.call(ctx, StepPreBind, p, bc, func(ctx context.Context) error { return p.PreBind(ctx, bc) })
		if err != nil {
			return framework.AsError(p.Name(), err)
		}
		bc.ReportWait(framework.Waiting{})
	}
	return nil
}

// Confirm calls Confirm of the plugins in order and returns the first error. An error that
// a plugin returns for the cached reader counts only if it returns one for the live reader
// too.
func (r *Runner) Confirm(ctx context.Context, plugins []framework.PreBinder, bc *framework.BindContext) *framework.Error {
	for _, p := range plugins {
		confirmer, ok := p.(framework.Confirmer)
		if !ok {
			continue
		}
		err := r.call(ctx, StepConfirm, p, bc, func(ctx context.Context) error {
			err := confirmer.Confirm(ctx, r.cachedFor(p), bc)
			if err == nil {
				return nil
			}
			if ctx.Err() != nil {
				// The cache alone must not reject the bind, and there is no time for a live read.
				return context.Cause(ctx)
			}
			bc.Live = true
			defer func() { bc.Live = false }()
			return confirmer.Confirm(ctx, r.liveFor(p), bc)
		})
		if err != nil {
			return framework.AsError(p.Name(), err)
		}
	}
	return nil
}

// PostBind calls PostBind of a plugin, if it has one. Its error is a panic of the plugin.
func (r *Runner) PostBind(ctx context.Context, p framework.PreBinder, bc *framework.BindContext) error {
	post, ok := p.(framework.PostBinder)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, postBindTimeout)
	defer cancel()
	return r.call(ctx, StepPostBind, p, bc, func(ctx context.Context) error {
		post.PostBind(ctx, bc)
		return nil
	})
}

// RollBack calls PreBindRollBack of a plugin once, if it has one.
func (r *Runner) RollBack(ctx context.Context, p framework.PreBinder, bc *framework.BindContext) error {
	undoer, ok := p.(framework.RollBacker)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rollBackTimeout)
	defer cancel()
	return r.call(ctx, StepPreBindRollBack, p, bc, func(ctx context.Context) error {
		return preBindRollBack(ctx, undoer, bc)
	})
}

// Marks returns the marks of a plugin; none if it leaves no marks. With an error, the list
// may be incomplete.
func (r *Runner) Marks(ctx context.Context, p framework.PreBinder) (marks []framework.Mark, err error) {
	recoverer, ok := p.(framework.Recoverer)
	if !ok {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, marksTimeout)
	defer cancel()
	err = contained(ctx, func() (err error) {
		marks, err = recoverer.Marks(ctx)
		return err
	})
	return marks, err
}

// Tidy calls Tidy of a plugin, if it has one.
func (r *Runner) Tidy(ctx context.Context, p framework.PreBinder) error {
	tidier, ok := p.(framework.Tidier)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tidyTimeout)
	defer cancel()
	return contained(ctx, func() error { return tidier.Tidy(ctx) })
}

// call makes one call of a plugin, contained and tracked.
func (r *Runner) call(ctx context.Context, name string, p framework.PreBinder, bc *framework.BindContext, f func(ctx context.Context) error) error {
	ctx, done := r.Tracker.Step(ctx, StepOf(name, p.Name(), bc))
	err := contained(ctx, func() error { return f(ctx) })
	done(err)
	return err
}

// contained calls f and returns its panic as an error, so that a bug in a plugin fails one
// bind and not the process. A nil *framework.Error in an error is nil.
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

// cachedFor returns the cached reader of a plugin.
func (r *Runner) cachedFor(p framework.PreBinder) framework.Reader {
	if r.CachedFor == nil {
		return r.Cached
	}
	return r.CachedFor(p.Name())
}

// liveFor returns a live reader that reports the reads of the plugin to the tracker.
func (r *Runner) liveFor(p framework.PreBinder) framework.Reader {
	return trackedReader{Reader: r.Live, tracker: r.Tracker, plugin: p.Name()}
}
