// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
)

const (
	// Settle is how long the cache must lead to a rejection before the call is rejected. A watch is
	// rarely later. If it is, the rejection can be false, and the scheduler tries again.
	Settle = time.Second
	// pace is the minimum time between two passes of a call.
	pace = 20 * time.Millisecond
	// paceOfRejection is the same while a call is about to be rejected, and takes no seat.
	paceOfRejection = 100 * time.Millisecond
	// readAgain is the pause after a write that failed for a reason that passes.
	readAgain = 2 * time.Second
)

// call is one Request on its way through the engine.
type call struct {
	*Engine
	Request
	// settings are those of the pod's namespace.
	settings Settings
	// audit is set if Request.DryRun is because of the mode Audit.
	audit bool
	began time.Time

	key work.Key
	// pod, node, budget, required and results are those of the last pass. The budget is the time that the bind has from the first
	// call on. required are the plugins that the Binding or the pod requires.
	pod      *corev1.Pod
	node     *corev1.Node
	budget   time.Duration
	required map[string]bool
	results  []result
	// claimed and claimedErr are the devices of the pod's claims.
	claimed    []mutators.Device
	claimedErr error
	// podRead, nodeRead and claimsRead are when the API server last returned the pod, the node, and the claims. rereads is when the first of those that
	// the last pass used again has to be read again, or zero.
	podRead, nodeRead, claimsRead, rereads time.Time
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
	// late says that a PreBind has rejected late.
	late bool
	// leave gives the seat of the call back. It is nil if the call has none. size is its memory. full says that the call got no seat or memory.
	leave func()
	size  int
	full  bool
	// reports is when an event reports the wait, or zero.
	reports time.Time
	// last is the last step that waited.
	last step
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
	name := c.Binding.Target.Name
	// The API server accepts every name.
	if problems := apivalidation.NameIsDNSSubdomain(name, false); len(problems) > 0 {
		return Decision{Err: framework.Refuse(framework.Object{Kind: "Node", Name: short(name)}, "invalid name: %s", problems[0]).Advise("choose another node")}
	}
	// Until the pod is read, its name stands for its UID.
	c.key, c.first = work.Key{Pod: types.UID(c.Pod.String()), Node: name}, c.began
	// A shorter hold would end before a rejection counts, in every call: the bind would never be rejected nor rolled back.
	hold := 2 * Settle
	if !c.audit { // Which waits for nothing: reads that do not end must not delay the bind.
		hold = max(hold, c.settings.Hold)
	}
	held, cancel := context.WithTimeout(ctx, hold)
	defer cancel()
	defer context.AfterFunc(c.stopping, cancel)()
	end := c.loop(held)
	d := end.answer
	d.Err = end.err
	for _, f := range d.Failures {
		klog.FromContext(ctx).Error(f.Err, "Mutator failed, leaving out its annotations and labels", "mutator", f.Mutator, "stack", f.Stack)
	}
	for _, r := range c.results {
		d.Warnings = append(d.Warnings, r.verdict.Warnings...)
	}
	if c.changes != nil {
		c.changes.Close()
	}
	if c.leave != nil {
		c.leave()
	}
	c.seats.grow(c.Pod.Namespace, -c.size)
	if c.DryRun {
		return d
	}
	if d.Err != nil && d.Err.Kind == framework.KindWait {
		d.RetryAfter = atOnce // It probably gets a seat again, in this replica or in another.
		if c.full {
			d.RetryAfter = retryAfter(c.o.Clock.Since(c.first))
		}
		c.awaits(d.Err, end.first(), 1, d.RetryAfter)
	} else {
		c.waits.end(c.key, c.o.Clock.Now(), d.Err == nil && !d.PassThrough)
	}
	if c.entry != nil {
		if !d.PassThrough {
			d.Attempt = c.id
		}
		c.work.Leave(c.entry, d.PassThrough || d.Err != nil && d.RetryAfter == 0, d.RetryAfter)
	}
	if d.Attempt != "" || c.calls > 0 || c.leave != nil {
		d.Calls, d.Waited = c.calls+1, c.o.Clock.Since(c.first)
	}
	if d.RetryAfter == 0 {
		for _, r := range c.results {
			if o, ok := r.plugin.(framework.Observer); ok {
				// The log reports a panic.
				_ = work.Contain(ctx, func() error { o.BindDecided(ctx, r.bc); return nil })
			}
		}
	}
	if d.RetryAfter > 0 && c.settings.RejectWaits {
		rejected := *d.Err
		rejected.Kind, rejected.Advice = framework.KindRefuse, "schedule the pod again: Prebind continues to prepare it"
		d.Err, d.RetryAfter = &rejected, 0
	}
	return d
}

// loop repeats one pass until the bind is ready, rejected, or has to be posted again. It returns a step that finishes:
//
//	read and decide       SetupBindContextExtension and PreFlight of every plugin, from the cache
//	somebody rejects?     if that has been so for Settle: reject; otherwise wait for a change
//	somebody writes?      PreBind of those plugins, once per change; then repeat
//	somebody waits?       wait until something changes that was read, or the hold ends
//	all ready             run the mutators, which can reject, too; reserve, answer, and check once that the call has not ended
//
// A panic is a rejection: the call then gives its seat back, and its work is rolled back.
func (c *call) loop(ctx context.Context) (end step) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "Panic while deciding on a Binding", "panic", p, "stack", string(debug.Stack()))
			err := fmt.Errorf("panic: %v: this is a bug in Prebind; report it with the stack trace of Prebind's log", p)
			end = step{do: finish, err: framework.AsError(framework.Binder, err)}
		}
	}()
	for {
		next := c.pass(ctx)
		switch {
		case !c.DryRun || next.do == finish:
		case next.err != nil:
			next.do = finish
		default: // The explanation says what the bind would write and wait for.
			next = step{do: allow}
		}
		if next.do == write {
			next = c.write(ctx, next)
		}
		if next.do == allow {
			next = c.allow(ctx, next.plugins)
		}
		if ctx.Err() != nil { // The only check, after all that could allow the bind.
			return c.ended(ctx, c.last)
		}
		now := c.o.Clock.Now()
		switch {
		case next.do != reject:
			c.settles = time.Time{}
		case c.settles.IsZero():
			c.settles = now.Add(Settle)
			if end, ok := ctx.Deadline(); ok && end.Sub(c.began) < 2*Settle { // The timeout of the client is so short that each call would end before.
				c.settles = now.Add(end.Sub(now) / 2)
			}
		case !now.Before(c.settles):
			next.do = finish
		}
		if next.do == wait || next.do == reject {
			next = c.wait(ctx, next)
		}
		if next.do == finish {
			return next
		}
	}
}

// pass reads the bind, calls Setup and PreFlight of every plugin that takes part, in order, and decides. A rejection of the
// engine counts like that of a plugin.
func (c *call) pass(ctx context.Context) step {
	c.rereads = time.Time{}
	if s := c.look(ctx); s.do != allow {
		return s // Observers get the results of the last pass.
	}
	if !c.DryRun { // Which makes one pass, and can read live.
		c.entry, c.id = c.work.Join(c.key, c.node.UID, c.entry, c.id)
		end, waited := c.turns.take(ctx, c.Pod.Namespace)
		defer end()
		if waited { // The node can be another one.
			if s := c.look(ctx); s.do != allow {
				return s
			}
		}
	}
	c.results = c.results[:0]
	now := c.o.Clock.Now()
	for _, p := range c.settings.Plugins {
		name := p.Name()
		if _, ok := p.(framework.OnRequest); ok && !c.required[name] && len(framework.Parameters(name, c.Binding, c.pod)) == 0 {
			continue
		}
		r := result{plugin: p, bc: &framework.BindContext{
			Pod: c.pod, Node: c.node, Binding: c.Binding, User: c.User, Attempt: c.id, Now: now, Since: c.first, DryRun: c.DryRun, Audit: c.audit,
			Written: c.entry != nil && c.work.Written(c.entry, name),
		}}
		preFlight := work.Step{Name: work.StepPreFlight, Plugin: name, Pod: c.Pod, Node: c.key.Node, Attempt: c.id}
		err := work.Call(ctx, c.o.Recorder, preFlight, func(ctx context.Context) (err error) {
			if extender, ok := p.(framework.BindContextExtender); ok {
				cache := c.o.Cached
				if c.changes != nil {
					cache = subscribing{Reader: cache, to: c.changes}
				}
				// The error can be a nil *framework.Error: then PreFlight must run.
				if err := work.Contain(ctx, func() error { return extender.SetupBindContextExtension(ctx, cache, r.bc) }); err != nil {
					return err
				}
			}
			r.verdict, err = p.PreFlight(r.bc)
			return err
		})
		if err != nil {
			r.err = framework.AsError(name, err)
		}
		c.results = append(c.results, r)
	}
	return decide(c.results, c.asked)
}

// look reads what the engine needs for a pass. The pod must be the one of the first pass, and so must the node.
func (c *call) look(ctx context.Context) step {
	first := c.pod == nil
	if s := c.readPod(ctx); s.do != allow {
		return s
	}
	if first {
		c.key.Pod = c.pod.UID
		before := c.waits.before(c.key, c.began)
		c.first, c.calls = before.since, before.calls
	}
	var added map[string]string
	if len(c.settings.Plugins) > 0 {
		added = attemptRoom
	}
	err := guardMetadata(c.pod, c.Binding)
	if err == nil {
		err = guardSize(c.pod, c.Binding, added)
	}
	if err != nil {
		return ends(err)
	}
	c.required = nil
	given := framework.Parameters(framework.Binder, c.Binding, c.pod)
	if p, ok := given[requireKey]; ok {
		if c.required, err = requiredPlugins(c.settings.Plugins, p); err != nil {
			return ends(err)
		}
	}
	if len(c.settings.Plugins) == 0 && c.settings.Mutators.Len() == 0 {
		return step{do: finish, answer: Decision{PassThrough: true}} // Nothing is enabled.
	}
	c.budget = c.settings.PreBindTimeout
	if p, ok := given[timeoutKey]; ok {
		if c.budget, err = budgetOf(c.settings.MaxPreBindTimeout, p); err != nil {
			return ends(err)
		}
	}
	node, err := c.readNode(ctx)
	switch {
	case err != nil:
		return ends(err)
	case c.node != nil && c.node.UID != node.UID:
		c.nodeRead = time.Time{} // The next pass must not use the old node.
		return ends(framework.Refuse(framework.Object{Kind: "Node", Name: node.Name}, "the node was deleted and recreated").Advise("schedule the pod again"))
	}
	c.node = node
	return step{do: allow}
}

// write calls PreBind of the plugins that have to write. It returns what to do next.
func (c *call) write(ctx context.Context, s step) step {
	if c.entry == nil {
		e, err := c.work.Open(ctx, c.key, c.node.UID, c.Pod, c.id)
		if err != nil {
			return c.failed(framework.Binder, err)
		}
		c.entry = e
		if ours := c.id; e.ID() != ours {
			// Another call has begun to write. The contexts must have its attempt.
			c.id = e.ID()
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
		c.last = step{waits: []framework.Wait{{Object: podObject(c.Pod), For: "the plugin to write"}}, plugin: p.Name()}
		preBind := work.Step{Name: work.StepPreBind, Plugin: p.Name(), Pod: c.Pod, Node: c.key.Node, Attempt: c.id}
		var began time.Time
		err := c.work.Write(ctx, c.entry, p, func() error {
			began = c.o.Clock.Now()
			return work.Call(ctx, c.o.Recorder, preBind, func(ctx context.Context) error { return p.PreBind(ctx, r.bc) })
		})
		if err != nil && !c.late && !began.IsZero() && c.o.Clock.Since(began) > Settle && framework.AsError(p.Name(), err).Kind == framework.KindRefuse {
			// The state that PreBind read first can be over. A later pass calls PreBind again, but only once: then the API server is slow.
			c.late = true
			delete(c.asked, p.Name())
			return step{do: repeat}
		}
		if err != nil {
			delete(c.asked, p.Name()) // It has written nothing that the cache will show.
			return c.failed(p.Name(), err)
		}
	}
	return step{do: repeat}
}

// allow builds the answer, which can still be a rejection, calls Reserve of the plugins with late writes, and records that the call is
// allowed.
func (c *call) allow(ctx context.Context, late []int) step {
	attempt := ""
	if c.entry != nil {
		attempt = c.id
	}
	d, err := c.compose(ctx, attempt)
	switch {
	case err == nil:
	case c.DryRun:
		return step{do: finish, err: err}
	case err.Kind == framework.KindWait:
		return c.failed(framework.Binder, err)
	default:
		s := ends(err)
		s.answer.Failures = d.Failures
		return s
	}
	for _, i := range late {
		r := c.results[i]
		p, ok := r.plugin.(framework.Reserver)
		if !ok {
			return step{do: finish, err: framework.AsError(r.plugin.Name(), errors.New("the plugin has late writes, but no Reserve"))}
		}
		if !p.Reserve(r.bc) {
			until := c.o.Clock.Now().Add(readAgain) // The plugin decides again; no change of an object may follow.
			return step{do: wait, waits: []framework.Wait{{For: "its turn", Until: until}}, until: until}
		}
	}
	if c.entry != nil {
		if err := c.work.Allow(c.entry); err != nil {
			return c.failed(framework.Binder, err)
		}
	}
	return step{do: finish, answer: d}
}
