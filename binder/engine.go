// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package binder decides on Bindings before the API server executes them. It does not depend
// on HTTP.
//
// A bind passes through guards (guards.go), and then through the loop of its call (call.go),
// in which plugins decide, write and wait. When all are ready, the mutators run, and the
// size of the merged annotations is checked (answer.go). All that outlives the call is in package work.
package binder

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/work"
)

// Options of an Engine. All fields are required.
type Options struct {
	// Options are those of the work on binds. The engine reads nodes, and what plugins watch, like pods. It never changes the objects.
	work.Options
	// Settings are those of the configuration.
	Settings Settings
}

// Engine decides on Bindings. It is safe for concurrent use.
type Engine struct {
	o     Options
	work  *work.Set
	waits waits
	seats seats
	turns turns
	// draining is closed by drain.
	draining chan struct{}
	// stopping ends all calls. Stop ends it.
	stopping context.Context //nolint:containedctx // It is that of the engine, not of a call.
	stop     context.CancelCauseFunc
	drain    func()
}

// New returns the engine. It starts nothing.
func New(o Options) *Engine {
	draining := make(chan struct{})
	stopping, stop := context.WithCancelCause(context.Background()) //nolint:forbidigo // It ends with the engine.
	return &Engine{
		o: o, work: work.NewSet(o.Options), waits: newWaits(o.Clock), turns: newTurns(),
		draining: draining, drain: sync.OnceFunc(func() { close(draining) }),
		stopping: stopping, stop: stop,
	}
}

// Exempt sets which users' Bindings the API server exempts from its concurrency limits. A
// held call of such a user takes no seat of the API server, so more of them are held. The
// function must be safe for concurrent use; nil exempts no user.
func (e *Engine) Exempt(is func(authenticationv1.UserInfo) bool) { e.seats.setExempt(is) }

// Stats are the numbers of what is in progress.
type Stats struct {
	// Attempts by phase, with all of work.Phases.
	Attempts map[string]int
	// Holds is how many calls are held, of MaxHolds at most, those of exempt users included.
	Holds, MaxHolds int
}

// Stats returns the present numbers; the caller owns the map.
func (e *Engine) Stats() Stats {
	s := Stats{Attempts: map[string]int{}}
	for _, phase := range work.Phases() {
		s.Attempts[phase] = 0
	}
	for _, f := range e.work.InFlight() {
		s.Attempts[f.Phase]++
	}
	s.Holds, s.MaxHolds = e.seats.count(e.o.Settings.MaxHolds)
	return s
}

// InFlight returns the binds in progress, the oldest first; the caller owns the slice.
func (e *Engine) InFlight() []work.InFlight {
	all, now := e.work.InFlight(), e.o.Clock.Now()
	for key, w := range e.waits.all() {
		f, ok := all[key]
		if !ok {
			f = work.InFlight{Namespace: w.pod.Namespace, Pod: w.pod.Name, UID: key.Pod, Node: key.Node, Phase: work.Waiting}
		}
		f.Plugin, f.WaitsFor, f.Budget.Duration = cmp.Or(w.waiting.Plugin, framework.Binder), w.wait.String(), w.budget
		f.Since = metav1.NewTime(now.Add(-now.Sub(w.since)))
		all[key] = f
	}
	return slices.SortedFunc(maps.Values(all), func(a, b work.InFlight) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(a.Namespace+"/"+a.Pod, b.Namespace+"/"+b.Pod))
	})
}

// Drain ends every hold. Waiting calls, and all later ones that would wait, are answered with
// KindWait. It cannot be undone.
func (e *Engine) Drain() { e.drain() }

// Stop drains, ends all calls and the work without a rollback, and waits for the work until the context
// ends. The repeated calls reach another replica, which continues.
func (e *Engine) Stop(ctx context.Context) error {
	e.drain()
	e.stop(work.Stopped) // Else a write of a plugin could last longer than the process, and its client would get no answer.
	return e.work.Stop(ctx)
}

// Sweep confirms or rolls back the writes that ended attempts left behind, until the context ends. Every replica runs it.
func (e *Engine) Sweep(ctx context.Context, peers work.Peers) {
	e.work.Sweep(ctx, e.o.Settings.Plugins, peers)
}

// Bind decides on one Binding. It returns within the hold and before the
// context's deadline. A panic rejects only this bind, and ends its work.
func (e *Engine) Bind(ctx context.Context, r Request) Decision {
	settings := e.o.Settings.in(r.Pod.Namespace)
	if passes(r) || settings.Mode == ModeOff {
		return Decision{PassThrough: true}
	}
	c := &call{Engine: e, Request: r, settings: settings, began: e.o.Clock.Now(), results: make([]result, 0, len(settings.Plugins))}
	c.audit = !r.DryRun && settings.Mode == ModeAudit
	c.DryRun = r.DryRun || c.audit
	d := c.run(ctx)
	if c.DryRun && !d.PassThrough {
		d = c.explained(d)
	}
	if d = d.bounded(); settings.Mode == ModeAudit {
		d = auditOnly(d)
	}
	if c.pod != nil && !r.DryRun && (d.Err != nil || d.Audit != nil) {
		c.report(d)
	}
	return d
}
