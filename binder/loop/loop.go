// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loop decides on one call for one bind. It repeats one pass until the bind is ready,
// rejected, or has to be posted again:
//
//	read and decide       SetupBindContextExtension and PreFlight of every plugin, from the cache
//	somebody rejects?     if that has been so for Settle: reject; otherwise wait for a change
//	somebody writes?      PreBind of those plugins, once per change; then repeat
//	somebody waits?       wait until something changes that was read, or the hold ends
//	all ready             reserve, answer, and check once that the call has not ended
//
// All that outlives the call is in package work.
package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/notify"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/binder/work"
)

const (
	// Settle is how long the cache must lead to a rejection before the call is rejected. A watch is
	// rarely later. If it is, the rejection can be false, and the scheduler tries again.
	Settle = time.Second
	// pace is the minimum time between two passes of a call.
	pace = 20 * time.Millisecond
	// readAgain is the pause after a write that failed for a reason that passes.
	readAgain = 2 * time.Second
	// MaxRetryAfter is the longest time that Prebind asks a client to wait before it calls again, without its spread.
	MaxRetryAfter = 30 * time.Second
	// minRetry and MaxRetryAfter limit Retry-After of a call that got no seat. atOnce is that of any other.
	minRetry, atOnce = 2 * time.Second, time.Second
)

// Loop decides on binds. All fields are required. It is safe for concurrent use.
type Loop struct {
	// CachedFor returns the cached reader of a plugin.
	CachedFor func(plugin string) framework.Reader
	// Changes reports changes of the objects that readers return.
	Changes *notify.Hub
	Work    *work.Set
	// Replica identifies this process; see work.NewID.
	Replica string
	Tracker runner.Tracker
	Clock   clock.WithDelayedExecution
	// Jitter returns a random number from 0 to 1.
	Jitter func() float64
}

// Bind is one call. All fields but DryRun and Audit are required.
type Bind struct {
	Key     work.Key
	Pod     types.NamespacedName
	Binding *corev1.Binding
	User    authenticationv1.UserInfo
	// DryRun and Audit are those of the BindContext.
	DryRun, Audit bool
	// First is the time of the first call for this bind that this replica received.
	First time.Time
	// Look returns what the engine reads in each pass, or why the call ends. A rejection counts like that of
	// a plugin.
	Look func(ctx context.Context) (View, *framework.Error)
	// Hold is how long the call may take, writes included. The API server answers a client with an error if the
	// answer comes too late.
	Hold time.Duration
	// Seat is called once, when the call has to wait. It returns false if the call must not wait at all.
	Seat func() bool
	// Waits is called when the call begins to wait, and when what it waits for can have changed, with what the client would
	// receive and with the first wait. It must not block.
	Waits func(*framework.Error, framework.Wait)
	// Draining is closed when the replica shuts down.
	Draining <-chan struct{}
	// Answer builds the answer that allows the bind, when all plugins are ready. The attempt is
	// empty if no plugin has written. An error rejects the bind. It is not called for dry runs.
	Answer func(ctx context.Context, ready Ready) *framework.Error
}

// View is what the engine reads of a bind.
type View struct {
	// Pod and Node are those of BindContext.
	Pod  *corev1.Pod
	Node *corev1.Node
	// Plugins take part in the bind, in order.
	Plugins []framework.Plugin
	// Budget is the time that the bind has from its first call on.
	Budget time.Duration
}

// Ready is a bind for which all plugins are ready.
type Ready struct {
	View
	Results []Result
	Attempt string
}

// Result is what one plugin decided in a pass: a verdict or an error.
type Result struct {
	Plugin  framework.Plugin
	Verdict framework.Verdict
	Err     *framework.Error
	bc      *framework.BindContext
}

// Outcome is the end of a call.
type Outcome struct {
	// Err is nil if the bind is allowed. Its kind is KindWait if the client has to post the Binding
	// again after RetryAfter.
	Err        *framework.Error
	RetryAfter time.Duration
	// Wait is the first wait of a call that could not wait any longer.
	Wait framework.Wait
	// Results are those of the last pass, by plugin, in order.
	Results []Result
	// Attempt is that of the bind if a plugin has written for it.
	Attempt string
}

// call is one call in progress.
type call struct {
	*Loop
	Bind
	// changes is nil until the call has to wait: most binds do not.
	changes *notify.Subscription
	// entry is the work that the call has joined, or nil. id is the attempt's ID.
	entry *work.Entry
	id    string
	// asked are the plugins whose PreBind was called since the last change.
	asked map[string]bool
	// budget is that of the last view.
	budget time.Duration
	// seated says that the call has a seat, and held that the hold has ended.
	seated, held bool
	// settles is when a rejection counts, or zero if the last pass had none. It counts from the first
	// rejection and not from the call: the watches of two kinds can be apart at any time.
	settles time.Time
	// observed are the waits that observers have received last.
	observed []framework.Wait
}

// Run decides on the call. It returns when the bind is allowed or rejected, when the hold ends, or
// when the context ends; then it never allows.
func (l *Loop) Run(ctx context.Context, b Bind) Outcome {
	c := &call{Loop: l, Bind: b, asked: map[string]bool{}}
	defer c.unsubscribe()
	held, cancel := context.WithTimeout(ctx, b.Hold)
	defer cancel()
	o := c.run(held)
	if o.Err != nil && o.Err.Kind == framework.KindWait {
		o.RetryAfter = c.retryAfter()
	}
	if c.entry != nil {
		if l.Work.HasWritten(c.entry) {
			o.Attempt = c.id
		}
		if o.Err != nil && o.Err.Kind != framework.KindWait {
			l.Work.Reject(c.entry)
		}
		l.Work.Leave(c.entry, o.RetryAfter)
	}
	if o.RetryAfter == 0 {
		c.observe(ctx, o.Results, nil)
	}
	return o
}

// run repeats the pass until there is an outcome.
func (c *call) run(ctx context.Context) Outcome {
	for {
		view, err := c.Look(ctx)
		var results []Result
		next := step{do: finish, err: err}
		switch {
		case err == nil:
			c.budget = view.Budget
			results = c.pass(ctx, view)
			next = decide(results, c.asked)
		case err.Kind == framework.KindRefuse || err.Kind == framework.KindInvalid:
			next.do = reject
		}
		if c.DryRun {
			return Outcome{Results: results, Err: next.err}
		}
		if next.do == write {
			next = c.write(ctx, results, next)
		}
		if next.do == reserve {
			next = c.reserve(results, next)
		}
		if next.do == allow {
			next = c.allow(ctx, Ready{View: view, Results: results})
		}
		if ctx.Err() != nil { // The only check, after all that could allow the bind.
			c.held = true
			return Outcome{Err: c.unfinished(context.Cause(ctx)), Results: results}
		}
		if next.do != reject {
			c.settles = time.Time{}
		}
		switch next.do {
		case finish:
			return Outcome{Err: next.err, Results: results}
		case repeat:
			continue
		case allow, write, reserve, wait: // write and reserve returned one of the others.
		case reject:
			now := c.Clock.Now()
			if c.settles.IsZero() {
				c.settles = now.Add(Settle)
			}
			if !now.Before(c.settles) {
				return Outcome{Err: next.err, Results: results}
			}
			next.until = c.settles
		}
		if err := c.wait(ctx, next, results); err != nil {
			o := Outcome{Err: err, Results: results}
			if len(next.waits) > 0 {
				o.Wait = next.waits[0]
			}
			return o
		}
	}
}

// pass calls Setup and PreFlight of every plugin, in order.
func (c *call) pass(ctx context.Context, view View) []Result {
	if c.entry == nil && !c.DryRun {
		c.join(c.Work.Join(c.Key))
	}
	now := c.Clock.Now()
	results := make([]Result, 0, len(view.Plugins))
	for _, p := range view.Plugins {
		bc := &framework.BindContext{
			Pod: view.Pod, Node: view.Node, Binding: c.Binding, User: c.User, Attempt: c.id, Now: now, Since: c.First, DryRun: c.DryRun, Audit: c.Audit,
			Written: c.entry != nil && c.Work.Written(c.entry, p.Name()),
		}
		r := Result{Plugin: p, bc: bc}
		err := c.call(ctx, runner.StepPreFlight, p, func(ctx context.Context) (err error) {
			if extender, ok := p.(framework.BindContextExtender); ok {
				cache := c.CachedFor(p.Name())
				if c.changes != nil {
					cache = subscribing{Reader: cache, to: c.changes}
				}
				if err := extender.SetupBindContextExtension(ctx, cache, bc); err != nil {
					return err
				}
			}
			r.Verdict, err = p.PreFlight(bc)
			return err
		})
		r.Err = framework.AsError(p.Name(), err)
		results = append(results, r)
	}
	return results
}

// join makes the entry that of the call.
func (c *call) join(e *work.Entry) {
	c.entry = e
	if e != nil {
		c.id = e.ID()
	} else if c.id == "" {
		c.id = work.NewID(c.Replica)
	}
}

// write calls PreBind of the plugins that have to write. It returns what to do next.
func (c *call) write(ctx context.Context, results []Result, s step) step {
	if c.entry == nil {
		e, err := c.Work.Open(ctx, c.Key, c.Pod, c.id)
		if err != nil {
			return step{do: finish, err: c.lease(err)}
		}
		if c.join(e); e.ID() != results[0].bc.Attempt {
			// Another call has begun to write. The contexts must have its attempt.
			return step{do: repeat}
		}
	}
	for _, i := range s.plugins {
		r := results[i]
		p, ok := r.Plugin.(framework.PreBinder)
		if !ok {
			return step{do: finish, err: framework.AsError(r.Plugin.Name(), errors.New("the plugin has writes, but no PreBind"))}
		}
		c.asked[p.Name()] = true
		err := c.Work.Write(ctx, c.entry, p, r.bc, func() error {
			return c.call(ctx, runner.StepPreBind, p, func(ctx context.Context) error { return p.PreBind(ctx, r.bc) })
		})
		if next, ok := c.failed(p.Name(), err); ok {
			return next
		}
	}
	return step{do: repeat}
}

// failed returns what to do after the error of a write or of an allowance, if there is one.
func (c *call) failed(plugin string, err error) (step, bool) {
	var own *framework.Error
	switch {
	case err == nil:
		return step{}, false
	case errors.Is(err, work.Closing):
		return step{do: wait, over: c.entry.Over(), waits: []framework.Wait{{Object: c.about(), For: "the rollback of an earlier attempt"}}}, true
	case errors.Is(err, work.LeaseLost), errors.Is(err, work.Stopped):
		return step{do: finish, err: c.lease(err)}, true
	case errors.As(err, &own) && own.Kind == framework.KindWait:
		// The cache is behind, or the API server is slow.
		w := framework.Wait{Object: own.Object, For: own.Message, Until: c.Clock.Now().Add(readAgain)}
		return step{do: wait, waits: []framework.Wait{w}, until: w.Until}, true
	default:
		return step{do: finish, err: framework.AsError(plugin, err)}, true
	}
}

// reserve calls Reserve of the plugins that come last.
func (c *call) reserve(results []Result, s step) step {
	for _, i := range s.plugins {
		r := results[i]
		p, ok := r.Plugin.(framework.Reserver)
		if !ok {
			return step{do: finish, err: framework.AsError(r.Plugin.Name(), errors.New("the plugin has late writes, but no Reserve"))}
		}
		if !p.Reserve(r.bc) {
			return step{do: wait, waits: []framework.Wait{{For: "its turn"}}}
		}
	}
	return step{do: allow}
}

// allow builds the answer, and records that the call is allowed.
func (c *call) allow(ctx context.Context, ready Ready) step {
	if c.entry != nil && c.Work.HasWritten(c.entry) {
		ready.Attempt = c.id
	}
	if err := c.Answer(ctx, ready); err != nil {
		return step{do: finish, err: err}
	}
	if ready.Attempt != "" {
		if next, failed := c.failed(framework.Binder, c.Work.Allow(c.entry)); failed {
			return next
		}
	}
	return step{do: finish}
}

// The objects whose changes every call awaits that waits.
var (
	pod  = &corev1.Pod{}
	node = &corev1.Node{}
)

func (c *call) unsubscribe() {
	if c.changes != nil {
		c.changes.Close()
	}
}

// wait waits until something changes that was read, until the step's time, or until the hold ends. It
// returns an error if the call ends. The first time, it only subscribes to changes: the pass that is repeated reads what may have changed before.
func (c *call) wait(ctx context.Context, s step, results []Result) *framework.Error {
	if c.changes == nil {
		c.changes = c.Changes.Subscribe(notify.RefTo(pod, c.Pod.Namespace, c.Pod.Name), notify.RefTo(node, "", c.Key.Node), notify.AllBinds())
		return nil
	}
	now := c.Clock.Now()
	until := s.until
	if s.do == wait {
		end := c.First.Add(c.budget)
		if !now.Before(end) {
			return c.overBudget(s)
		}
		if !c.seated {
			if c.seated = c.Seat(); !c.seated {
				return c.waiting(s, now)
			}
		}
		c.Waits(c.waiting(s, now), s.waits[0])
		c.observe(ctx, results, s.waits)
		if until.IsZero() || end.Before(until) {
			until = end
		}
	}
	timer := c.Clock.NewTimer(max(until.Sub(now), pace))
	defer timer.Stop()
	select {
	case <-c.changes.C():
		clear(c.asked)
	case <-timer.C():
		clear(c.asked)
	case <-s.over:
		c.Work.Leave(c.entry, 0)
		c.entry, c.id = nil, ""
		clear(c.asked)
	case <-c.Draining:
		return c.waiting(s, c.Clock.Now())
	case <-ctx.Done():
		c.held = true
		return c.waiting(s, c.Clock.Now()).Because(context.Cause(ctx))
	}
	return c.rest(ctx, now)
}

// rest keeps the pace of passes.
func (c *call) rest(ctx context.Context, last time.Time) *framework.Error {
	left := pace - c.Clock.Since(last)
	if left <= 0 {
		return nil
	}
	timer := c.Clock.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return c.unfinished(context.Cause(ctx))
	}
}

// observe reports to observers what the bind waits for, if that has changed, or that it is decided.
func (c *call) observe(ctx context.Context, results []Result, waits []framework.Wait) {
	if c.DryRun || len(waits) > 0 && slices.EqualFunc(waits, c.observed, sameWait) {
		return
	}
	c.observed = waits
	for _, r := range results {
		o, ok := r.Plugin.(framework.Observer)
		switch {
		case !ok:
		case len(waits) > 0:
			o.BindWaits(ctx, r.bc, waits)
		default:
			o.BindDecided(ctx, r.bc)
		}
	}
}

func sameWait(a, b framework.Wait) bool { return a.Object == b.Object && a.For == b.For }

// retryAfter returns when the client should post the Binding again: at once if it probably gets a seat again, and otherwise after half
// of the time that the bind has waited so far, within limits, spread by a quarter.
func (c *call) retryAfter() time.Duration {
	select {
	case <-c.Draining:
		// Another replica may have a seat.
		return atOnce
	default:
	}
	if c.held {
		return atOnce
	}
	return RetryAfter(c.Clock.Since(c.First), c.Jitter())
}

// RetryAfter returns half of the elapsed time, at least 2 s and at most 30 s, plus up to a quarter by
// the jitter from 0 to 1, in whole seconds.
func RetryAfter(elapsed time.Duration, jitter float64) time.Duration {
	after := min(max(elapsed/2, minRetry), MaxRetryAfter)
	after += time.Duration(jitter * float64(after) / 4)
	return after.Round(time.Second)
}

// call makes one call of a plugin, contained and tracked.
func (c *call) call(ctx context.Context, name string, p framework.Plugin, f func(ctx context.Context) error) error {
	step := runner.Step{Name: name, Plugin: p.Name(), Pod: c.Pod, Node: c.Key.Node, Attempt: c.id}
	return runner.Call(ctx, c.Tracker, step, f)
}

func (c *call) about() framework.Object {
	return framework.Object{Kind: "Pod", Namespace: c.Pod.Namespace, Name: c.Pod.Name}
}

// waiting returns the answer to a call that could not wait any longer.
func (c *call) waiting(s step, now time.Time) *framework.Error {
	if len(s.waits) == 0 {
		// The call may be rejected, but it is too early to say so.
		return framework.AsError(framework.Binder, framework.NotYet(c.about(), "waiting for the cache").Advise("retry the Binding"))
	}
	first, more := s.waits[0], ""
	if n := len(s.waits) - 1; n > 0 {
		more = fmt.Sprintf(", and %d more", n)
	}
	err := framework.NotYet(first.Object, "waiting for %s (%s)%s", first.For, now.Sub(c.First).Round(time.Second), more).Advise("retry the Binding")
	err.Plugin = s.plugin
	return framework.AsError(framework.Binder, err)
}

// overBudget returns the answer to a bind that has waited for too long.
func (c *call) overBudget(s step) *framework.Error {
	err := framework.Refuse(s.waits[0].Object, "timed out after %s waiting for %s", c.budget, s.waits[0].For).
		Advise("check the cause of the delay, or raise --prebind-timeout")
	err.Plugin = s.plugin
	return framework.AsError(framework.Binder, err)
}

// lease returns the answer of a replica on whose work no bind may rely.
func (c *call) lease(cause error) *framework.Error {
	return framework.AsError(framework.Binder, framework.NotYet(c.about(), "%v", cause).Because(cause).Advise("retry the Binding"))
}

// unfinished returns the answer to a call that ended before the decision.
func (c *call) unfinished(cause error) *framework.Error {
	return framework.AsError(framework.Binder,
		framework.NotYet(c.about(), "the request ended before the decision").Because(cause).Advise("retry the Binding"))
}
