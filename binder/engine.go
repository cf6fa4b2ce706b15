// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package binder decides on Bindings before the API server executes them. It does not depend
// on HTTP.
//
// A bind passes through guards, mutators, the check of the merged metadata, and PreFlight of
// every plugin. If a plugin has work to do, an attempt runs PreBind. It outlives the call.
package binder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/recovery"
	"github.com/prebind/prebind/binder/runner"
)

// Options of an Engine. All fields are required but CachedFor, Term and Recorder.
type Options struct {
	// Cached reads pods without a node, nodes, and the kinds that plugins watch, from a
	// cache. The engine never changes the returned objects.
	Cached framework.Reader
	// CachedFor returns the cached reader of a plugin, by its name. It may be nil: then all
	// plugins read through Cached.
	CachedFor func(plugin string) framework.Reader
	// Live reads the same from the API server, if the cache lacks an object or has one that
	// would end the bind.
	Live framework.Reader
	// Settings are those of the configuration.
	Settings Settings
	// Replica identifies this process, by letters and digits.
	Replica string
	// Term returns the number of the replica's current term, and whether the replica holds
	// it. A bind may rely only on writes of an attempt in a term that is still held: other
	// replicas may have rolled back the others. Term must be fast, and safe for concurrent
	// use. It may be nil if there are no other replicas.
	Term func() (term int64, held bool)
	// Changes reports changes of pods.
	Changes *framework.Hub
	// Events records on the pod what its bind waits for, and why it is rejected.
	Events events.EventRecorder
	// Recorder records the work on binds. It may be nil.
	Recorder Recorder
	Clock    clock.WithDelayedExecution
}

func (o Options) validate() error {
	switch {
	case o.Cached == nil || o.Live == nil || o.Changes == nil || o.Events == nil || o.Clock == nil:
		return errors.New("engine: Cached, Live, Changes, Events and Clock are required")
	case o.Replica == "" || strings.Contains(o.Replica, attempt.IDSeparator):
		return fmt.Errorf("engine: Replica is required, without %q", attempt.IDSeparator)
	default:
		return o.Settings.validateNames()
	}
}

// Engine decides on Bindings. It is safe for concurrent use.
type Engine struct {
	services
	settings Settings
	drain    func()
}

// New checks the options and returns the engine. It starts nothing.
func New(o Options) (*Engine, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Recorder == nil {
		o.Recorder = unrecorded{}
	}
	if o.Term == nil {
		o.Term = func() (int64, bool) { return 0, true }
	}
	draining := make(chan struct{})
	e := &Engine{
		services: services{
			reader:  reader{cached: o.Cached, live: o.Live, recorder: o.Recorder},
			runner:  &runner.Runner{Cached: o.Cached, CachedFor: o.CachedFor, Live: o.Live, Tracker: o.Recorder, Events: o.Events},
			waits:   newWaits(o.Clock),
			replica: o.Replica, term: o.Term, clock: o.Clock,
			anyAttempt: map[string]string{framework.AttemptAnnotation: attempt.NewID(o.Replica)},
			draining:   draining,
		},
		settings: o.Settings,
		drain:    sync.OnceFunc(func() { close(draining) }),
	}
	e.attempts = attempt.NewSet(attempt.Options{
		Runner: e.runner, Changes: o.Changes, Observer: o.Recorder, Term: o.Term, Clock: o.Clock,
	})
	return e, nil
}

// Exempt sets which users' Bindings the API server exempts from its concurrency limits. A
// held call of such a user takes no seat of the API server, so more of them are held. The
// function must be safe for concurrent use; nil exempts no user.
func (e *Engine) Exempt(is func(authenticationv1.UserInfo) bool) {
	if is == nil {
		e.seats.isExempt.Store(nil)
		return
	}
	e.seats.isExempt.Store(&is)
}

// Stats are the numbers of what is in progress.
type Stats struct {
	// Attempts by phase, with all of attempt.Phases.
	Attempts map[string]int
	// Holds is how many calls are held, of MaxHolds at most, those of exempt users included.
	Holds, MaxHolds int
}

// Stats returns the present numbers; the caller owns the map.
func (e *Engine) Stats() Stats {
	s := Stats{Attempts: e.attempts.Count()}
	s.Holds, s.MaxHolds = e.seats.count(e.settings.MaxHolds)
	return s
}

// InFlight returns the attempts in progress, the oldest first; the caller owns the slice.
func (e *Engine) InFlight() []attempt.InFlight { return e.attempts.InFlight() }

// Drain ends every hold. Waiting calls, and all later ones that would wait, are answered with
// KindWait. It cannot be undone.
func (e *Engine) Drain() { e.drain() }

// Settle waits until the outcome of every allowed bind is known, or the context ends. Call it
// between Drain and Stop, while the caches are still updated.
func (e *Engine) Settle(ctx context.Context) { e.attempts.Settle(ctx) }

// Stop drains, ends the attempts without a rollback, and waits for them until the context
// ends. The repeated calls reach another replica, which continues.
func (e *Engine) Stop(ctx context.Context) error {
	e.drain()
	return e.attempts.Stop(ctx)
}

// Sweeper returns the sweeper for the writes that ended replicas left behind. One replica at a
// time should run it.
func (e *Engine) Sweeper(replicas recovery.Replicas) *recovery.Sweeper {
	return recovery.New(recovery.Options{
		Runner: e.runner, Observer: e.recorder, Replica: e.replica, Replicas: replicas, Working: e.attempts.Working,
		Plugins: func() []framework.PreBinder { return e.settings.Plugins }, Clock: e.clock,
	})
}

// OwnSweeper returns the sweeper for the writes that attempts of this replica could not roll
// back, for example because the API server did not respond. Every replica runs one.
func (e *Engine) OwnSweeper() *recovery.Sweeper { return e.Sweeper(nil) }

// Bind decides on one Binding. It returns within the hold and before the
// context's deadline.
func (e *Engine) Bind(ctx context.Context, r Request) Decision {
	ctx, began := e.recorder.Begin(ctx), e.clock.Now()
	d := e.answer(ctx, r, began)
	e.recorder.Decided(ctx, r, d, e.clock.Since(began))
	return d
}

// answer decides on one Binding that arrived at the time.
func (e *Engine) answer(ctx context.Context, r Request, began time.Time) Decision {
	if !targetsNode(r.Binding) || !namesPod(r) {
		return Decision{PassThrough: true}
	}
	c := &call{services: &e.services, Request: r, settings: &e.settings, began: began}
	c.policy = c.settings.policyFor(r.Pod.Namespace)
	if c.policy.mode == ModeOff {
		return Decision{PassThrough: true}
	}
	c.DryRun = r.DryRun || c.policy.mode == ModeAudit
	d, pod := c.decide(ctx)
	if cause := cutShort(ctx, d.Err); cause != nil {
		// There is no decision that an event could report.
		d, pod = d.deny(unfinished(r, cause)), nil
	}
	warnings := c.warnings()
	d.Warnings = append(d.Warnings, warnings...)
	d = d.bounded()
	if c.DryRun {
		d = explain(c.policy.mode, d)
	}
	switch {
	case c.policy.mode != ModeAudit:
	case d.PassThrough:
		d = Decision{PassThrough: true}
	default:
		d = auditOnly(d)
		d.Warnings = append(d.Warnings, warnings...)
	}
	if pod != nil && !r.DryRun {
		c.report(pod, d)
	}
	return d
}

// decide decides on a Binding, and returns the pod unless the API server gives its
// own answer about it.
func (c *call) decide(ctx context.Context) (Decision, *corev1.Pod) {
	if err := guardTarget(c.Binding); err != nil {
		if c.settings.idle() {
			return Decision{PassThrough: true}, nil
		}
		return denied(err), nil
	}
	pod, err := c.reader.pod(ctx, c.Request)
	if err != nil {
		c.key = attempt.Key{Pod: types.UID(c.Pod.String()), Node: c.Binding.Target.Name}
		return c.later(err), pod
	}
	if unbindable(pod, c.Binding) {
		return rejectedBy(pod, c.Binding), nil
	}
	c.pod, c.key = pod, attempt.Key{Pod: pod.UID, Node: c.Binding.Target.Name}
	before := c.before()
	d := c.bind(ctx)
	if c.joined != nil || before.calls > 0 {
		d.Attempt, d.Calls, d.Waited = c.attemptID(), before.calls+1, c.clock.Since(before.since)
	}
	return d, pod
}

// bind decides on a Binding for a pod that can be bound. The cache can be behind a correction of
// the pod, so a rejection of the pod before PreFlight counts only for the live one. PreFlight does the
// same for rejections of plugins.
func (c *call) bind(ctx context.Context) Decision {
	d, decided := c.begin(ctx)
	if decided && d.Err != nil && d.Err.Object.Kind == "Pod" {
		outdated, err := c.outdated(ctx)
		switch {
		case err != nil:
			return c.later(err)
		case outdated:
			d, decided = c.begin(ctx)
		}
	}
	if decided {
		return d
	}
	if c.DryRun {
		return c.rehearse(ctx)
	}
	return c.prepare(ctx)
}

// begin reads the parameters and the node, runs the mutators, and checks the merged metadata. It
// returns false if there is no decision yet.
func (c *call) begin(ctx context.Context) (Decision, bool) {
	required, err := requiredPlugins(c.settings.Plugins, c.Binding, c.pod)
	if err != nil {
		return denied(err), true
	}
	if c.settings.idle() {
		if err := guardMerged(c.pod, c.Binding, nil, nil, nil); err != nil {
			return denied(err), true
		}
		return Decision{PassThrough: true}, true
	}
	if c.budget, err = budgetOf(c.policy, c.Binding, c.pod); err != nil {
		return denied(err), true
	}
	if c.node, err = c.reader.node(ctx, c.key.Node); err != nil {
		return c.later(err), true
	}
	c.plugins = takingPart(c.settings.Plugins, required, c.Binding, c.pod)
	if err := c.mutate(ctx); err != nil {
		return c.preview.deny(err), true
	}
	return Decision{}, false
}

// outdated reads the pod live, and returns whether the call has decided on an earlier version of it.
// Then the call continues with the live pod.
func (c *call) outdated(ctx context.Context) (bool, *framework.Error) {
	pod, err := c.livePod(ctx, c.Pod, runner.ReadDoubted)
	if err != nil || framework.WhereaboutsOf(pod, c.pod.UID, c.key.Node) != framework.Pending || guardVersion(pod, c.Binding) != nil ||
		pod.ResourceVersion == c.pod.ResourceVersion {
		return false, err
	}
	c.pod = pod
	return true, nil
}

// cutShort returns why a call that has ended has no decision: the client canceled it, or it timed out. An ended call is never
// allowed, because a step can have been left out. cutShort returns nil if the decision stands.
func cutShort(ctx context.Context, err *framework.Error) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case err == nil:
		return context.Cause(ctx)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	default:
		return nil
	}
}

// unfinished is the answer to a call that ended before the decision.
func unfinished(r Request, cause error) *framework.Error {
	err := framework.Wait(podObject(r.Pod), "the request ended before the decision").Advise("retry the Binding").Because(cause)
	err.Plugin = framework.Binder
	return err
}
