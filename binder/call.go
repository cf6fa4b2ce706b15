// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

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
)

// call is one Request on its way through the engine.
type call struct {
	*Engine
	Request
	// policy is what the settings say of the pod's namespace.
	policy policy
	// enabled are the plugins of the settings.
	enabled []framework.Plugin
	// audit is set if Request.DryRun is because of the mode Audit.
	audit bool
	began time.Time

	key work.Key
	// pod, node, budget and results are those of the last pass. The budget is the time that the bind has from the first call on.
	pod     *corev1.Pod
	node    *corev1.Node
	budget  time.Duration
	results []result
	// first is the time of the first call for the bind, and calls is the number of earlier ones.
	first time.Time
	calls int

	// changes is nil until the call has to wait: most binds do not.
	changes *notify.Subscription
	// entry is the work that the call has joined, or nil. id is the attempt's ID.
	entry *work.Entry
	id    string
	// asked are the plugins whose PreBind was called since the last change.
	asked map[string]bool
	// hold is the seat of the call, or nil. held says that the hold has ended.
	hold *hold
	held bool
	// settles is when a rejection counts, or zero if the last pass had none. It counts from the first
	// rejection and not from the call: the watches of two kinds can be apart at any time.
	settles time.Time
	// observed are the waits that observers have received last.
	observed []framework.Wait
}

// result is what one plugin decided in a pass: a verdict or an error.
type result struct {
	plugin  framework.Plugin
	verdict framework.Verdict
	err     *framework.Error
	bc      *framework.BindContext
}

// run runs the loop of the call, and leaves the work to the next call or to its follower. If the context ends, it never
// allows the bind.
func (c *call) run(ctx context.Context) Decision {
	held, cancel := context.WithTimeout(ctx, c.settings.Hold)
	defer cancel()
	d, wait := c.loop(held)
	if c.changes != nil {
		c.changes.Close()
	}
	if c.hold != nil {
		c.hold.release()
	}
	if c.DryRun {
		return d
	}
	d = c.remember(d, wait)
	if c.entry != nil {
		if !d.PassThrough && c.work.HasWritten(c.entry) {
			d.Attempt = c.id
		}
		if d.PassThrough || d.Err != nil && d.RetryAfter == 0 {
			c.work.Reject(c.entry)
		}
		c.work.Leave(c.entry, d.RetryAfter)
	}
	if d.RetryAfter == 0 {
		c.observe(ctx, nil)
	}
	return d
}

// loop repeats one pass until the bind is ready, rejected, or has to be posted again:
//
//	read and decide       SetupBindContextExtension and PreFlight of every plugin, from the cache
//	somebody rejects?     if that has been so for Settle: reject; otherwise wait for a change
//	somebody writes?      PreBind of those plugins, once per change; then repeat
//	somebody waits?       wait until something changes that was read, or the hold ends
//	all ready             reserve, answer, and check once that the call has not ended
//
// It also returns the first wait of a call that could not wait any longer.
func (c *call) loop(ctx context.Context) (Decision, framework.Wait) {
	for {
		next := c.pass(ctx)
		if c.DryRun {
			return c.rehearsed(ctx, next), framework.Wait{}
		}
		if next.do == write {
			next = c.write(ctx, next)
		}
		if next.do == reserve {
			next = c.reserve(next)
		}
		if next.do == allow {
			next = c.allow(ctx)
		}
		if ctx.Err() != nil { // The only check, after all that could allow the bind.
			c.held = true
			return c.denied(c.unfinished(context.Cause(ctx))), framework.Wait{}
		}
		if next.do != reject {
			c.settles = time.Time{}
		}
		switch next.do {
		case finish:
			if next.err != nil {
				return c.denied(next.err), framework.Wait{}
			}
			return next.answer, framework.Wait{}
		case repeat:
			continue
		case allow, write, reserve, wait: // write, reserve and allow returned one of the others.
		case reject:
			now := c.clock.Now()
			if c.settles.IsZero() {
				c.settles = now.Add(Settle)
			}
			if !now.Before(c.settles) {
				return c.denied(next.err), framework.Wait{}
			}
			next.until = c.settles
		}
		if err := c.wait(ctx, next); err != nil {
			return c.denied(err), next.first()
		}
	}
}

// pass reads the bind, calls Setup and PreFlight of every plugin that takes part, in order, and decides. A rejection of the
// engine counts like that of a plugin.
func (c *call) pass(ctx context.Context) step {
	c.results = c.results[:0]
	taking, s := c.look(ctx)
	if s.do != allow {
		return s
	}
	if c.entry == nil && !c.DryRun {
		c.join(c.work.Join(c.key))
	}
	now := c.clock.Now()
	for _, p := range taking {
		r := result{plugin: p, bc: &framework.BindContext{
			Pod: c.pod, Node: c.node, Binding: c.Binding, User: c.User, Attempt: c.id, Now: now, Since: c.first, DryRun: c.DryRun, Audit: c.audit,
			Written: c.entry != nil && c.work.Written(c.entry, p.Name()),
		}}
		r.err = framework.AsError(p.Name(), c.call(ctx, runner.StepPreFlight, p, func(ctx context.Context) (err error) {
			r.verdict, err = c.preFlight(ctx, p, r.bc)
			return err
		}))
		c.results = append(c.results, r)
	}
	return decide(c.results, c.asked)
}

// preFlight calls Setup and PreFlight of a plugin.
func (c *call) preFlight(ctx context.Context, p framework.Plugin, bc *framework.BindContext) (framework.Verdict, error) {
	if extender, ok := p.(framework.BindContextExtender); ok {
		cache := c.cachedFor(p.Name())
		if c.changes != nil {
			cache = subscribing{Reader: cache, to: c.changes}
		}
		if err := extender.SetupBindContextExtension(ctx, cache, bc); err != nil {
			return framework.Verdict{}, err
		}
	}
	return p.PreFlight(bc)
}

// call makes one call of a plugin, contained and tracked.
func (c *call) call(ctx context.Context, name string, p framework.Plugin, f func(ctx context.Context) error) error {
	step := runner.Step{Name: name, Plugin: p.Name(), Pod: c.Pod, Node: c.key.Node, Attempt: c.id}
	return runner.Call(ctx, c.recorder, step, f)
}

// look reads what the engine needs for a pass, and returns the plugins that take part. The pod must be the one of the first pass, and
// so must the node.
func (c *call) look(ctx context.Context) ([]framework.Plugin, step) {
	pod, err := c.pod, (*framework.Error)(nil)
	if c.node != nil { // The call has just read the pod for the first pass.
		pod, err = c.reader.pod(ctx, c.Request)
	}
	switch {
	case err != nil:
		return nil, ends(err)
	case unbindable(pod, c.Binding) || pod.UID != c.key.Pod:
		d := rejectedBy(pod, c.Binding)
		if d.UID != "" {
			// The API server must reject it: it was not checked.
			d.UID = c.key.Pod
		}
		return nil, step{do: finish, answer: d}
	}
	c.pod = pod
	if err := guardMerged(pod, c.Binding, nil, nil, c.mayCome()); err != nil {
		return nil, ends(err)
	}
	given := framework.Parameters(framework.Binder, c.Binding, pod)
	required, err := requiredPlugins(c.enabled, given)
	if err != nil {
		return nil, ends(err)
	}
	if c.budget, err = budgetOf(c.policy, given); err != nil {
		return nil, ends(err)
	}
	node, err := c.reader.node(ctx, c.key.Node)
	switch {
	case err != nil:
		return nil, ends(err)
	case c.node != nil && c.node.UID != node.UID:
		return nil, ends(framework.AsError(framework.Binder,
			framework.Refuse(framework.Object{Kind: "Node", Name: node.Name}, "the node was deleted and recreated").Advise("schedule the pod again")))
	}
	c.node = node
	return takingPart(c.enabled, required, c.Binding, pod), step{do: allow}
}

// join makes the entry that of the call.
func (c *call) join(e *work.Entry) {
	c.entry = e
	if e != nil {
		c.id = e.ID()
	} else if c.id == "" {
		c.id = work.NewID(c.replica)
	}
}

// write calls PreBind of the plugins that have to write. It returns what to do next.
func (c *call) write(ctx context.Context, s step) step {
	if c.entry == nil {
		e, err := c.work.Open(ctx, c.key, c.Pod, c.id)
		if err != nil {
			return step{do: finish, err: c.lease(err)}
		}
		if c.join(e); e.ID() != c.results[0].bc.Attempt {
			// Another call has begun to write. The contexts must have its attempt.
			return step{do: repeat}
		}
	}
	if c.asked == nil {
		c.asked = map[string]bool{}
	}
	for _, i := range s.plugins {
		r := c.results[i]
		p, ok := r.plugin.(framework.PreBinder)
		if !ok {
			return step{do: finish, err: framework.AsError(r.plugin.Name(), errors.New("the plugin has writes, but no PreBind"))}
		}
		c.asked[p.Name()] = true
		err := c.work.Write(ctx, c.entry, p, r.bc, func() error {
			return c.call(ctx, runner.StepPreBind, p, func(ctx context.Context) error { return p.PreBind(ctx, r.bc) })
		})
		if err != nil {
			return c.failed(p.Name(), err)
		}
	}
	return step{do: repeat}
}

// failed returns what to do after the error of a write or of an allowance.
func (c *call) failed(plugin string, err error) step {
	var own *framework.Error
	switch {
	case errors.Is(err, work.Closing):
		return step{do: wait, over: c.entry.Over(), waits: []framework.Wait{{Object: podObject(c.Pod), For: "the rollback of an earlier attempt"}}}
	case errors.Is(err, work.LeaseLost), errors.Is(err, work.Stopped):
		return step{do: finish, err: c.lease(err)}
	case errors.As(err, &own) && own.Kind == framework.KindWait:
		// The cache is behind, or the API server is slow.
		w := framework.Wait{Object: own.Object, For: own.Message, Until: c.clock.Now().Add(readAgain)}
		return step{do: wait, waits: []framework.Wait{w}, until: w.Until}
	default:
		return step{do: finish, err: framework.AsError(plugin, err)}
	}
}

// reserve calls Reserve of the plugins that come last.
func (c *call) reserve(s step) step {
	for _, i := range s.plugins {
		r := c.results[i]
		p, ok := r.plugin.(framework.Reserver)
		if !ok {
			return step{do: finish, err: framework.AsError(r.plugin.Name(), errors.New("the plugin has late writes, but no Reserve"))}
		}
		if !p.Reserve(r.bc) {
			return step{do: wait, waits: []framework.Wait{{For: "its turn"}}}
		}
	}
	return step{do: allow}
}

// allow builds the answer, and records that the call is allowed.
func (c *call) allow(ctx context.Context) step {
	attempt := ""
	if c.entry != nil && c.work.HasWritten(c.entry) {
		attempt = c.id
	}
	d, err := c.compose(ctx, attempt)
	if err != nil {
		return step{do: finish, err: err}
	}
	if attempt != "" {
		if err := c.work.Allow(c.entry); err != nil {
			return c.failed(framework.Binder, err)
		}
	}
	return step{do: finish, answer: d}
}

// The objects whose changes every call awaits that waits.
var (
	anyPod  = &corev1.Pod{}
	anyNode = &corev1.Node{}
)

// wait waits until something changes that was read, until the step's time, or until the hold ends. It
// returns an error if the call ends. The first time, it only subscribes to changes: the pass that is repeated reads what may have changed before.
func (c *call) wait(ctx context.Context, s step) *framework.Error {
	if c.changes == nil {
		c.changes = c.Engine.changes.Subscribe(notify.RefTo(anyPod, c.Pod.Namespace, c.Pod.Name), notify.RefTo(anyNode, "", c.key.Node), notify.AllBinds())
		return nil
	}
	now := c.clock.Now()
	until := s.until
	if s.do == wait {
		end := c.first.Add(c.budget)
		if !now.Before(end) {
			return c.overBudget(s)
		}
		if c.hold == nil {
			if c.hold = c.take(ctx); c.hold == nil {
				return c.waiting(s, now)
			}
		}
		c.awaits(c.waiting(s, now), s.first())
		c.observe(ctx, s.waits)
		if until.IsZero() || end.Before(until) {
			until = end
		}
	}
	timer := c.clock.NewTimer(max(until.Sub(now), pace))
	defer timer.Stop()
	select {
	case <-c.changes.C():
	case <-timer.C():
	case <-s.over:
		c.work.Leave(c.entry, 0)
		c.entry, c.id = nil, ""
	case <-c.draining:
		return c.waiting(s, c.clock.Now())
	case <-ctx.Done():
		c.held = true
		return c.waiting(s, c.clock.Now()).Because(context.Cause(ctx))
	}
	clear(c.asked)
	return c.rest(ctx, now)
}

// rest keeps the pace of passes.
func (c *call) rest(ctx context.Context, last time.Time) *framework.Error {
	left := pace - c.clock.Since(last)
	if left <= 0 {
		return nil
	}
	timer := c.clock.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return c.unfinished(context.Cause(ctx))
	}
}

// observe reports to observers what the bind waits for, if that has changed, or that it is decided.
func (c *call) observe(ctx context.Context, waits []framework.Wait) {
	if len(waits) > 0 && slices.EqualFunc(waits, c.observed, sameWait) {
		return
	}
	c.observed = waits
	for _, r := range c.results {
		o, ok := r.plugin.(framework.Observer)
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
