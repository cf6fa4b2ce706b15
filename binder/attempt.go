// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
)

// prepare joins the attempt in progress for this bind. Without one, it runs PreFlight and
// starts an attempt if a plugin has work to do. A call of another user, or with another Binding,
// joins only if its own PreFlight does not reject it.
func (c *call) prepare(ctx context.Context) Decision {
	held := hold{call: c}
	defer held.release()
	var admitted *attempt.Round
	for {
		a, r, phase := c.attempts.Join(c.key)
		c.joined = a
		if a != nil {
			if err := c.withoutLease(); err != nil {
				return c.later(err)
			}
		}
		joins := phase == attempt.Preparing || phase == attempt.Failed
		if joins && admitted != r && !sameOrigin(c.settings.Plugins, c.Request, r.Context) {
			if err := c.admit(ctx, a.ID()); err != nil {
				c.joined = nil
				return c.later(err)
			}
			// The attempt may have changed in the meantime.
			admitted = r
			continue
		}
		if joins && !sameParameters(c.settings.Plugins, c.Binding, c.pod, r.Context) {
			// The attempt, or its error, belongs to other parameters than those of this call.
			c.attempts.Dismiss(a, r)
			phase = attempt.RollingBack
		}
		var d Decision
		var decided bool
		switch phase {
		case attempt.Over, attempt.Prepared:
			d, decided = c.start(ctx, &held, a)
		case attempt.RollingBack:
			d, decided = c.awaitRollBack(ctx, &held, a, r)
		case attempt.Preparing, attempt.Failed:
			d, decided = c.awaitRound(ctx, &held, a, r)
		}
		if decided {
			return d
		}
	}
}

// admit runs the PreFlight of a call before it joins an attempt that began for another user or
// another Binding. An error is only for this call: another client must not end the attempt.
func (c *call) admit(ctx context.Context, id string) *framework.Error {
	bc := c.context(id)
	for _, p := range c.plugins {
		if _, err := c.check(ctx, p, bc); err != nil {
			return err
		}
	}
	return nil
}

// start runs PreFlight. It allows the bind if no plugin has work to do, or waits for a new
// round, of the prepared attempt or, if a is nil, of a new one. It returns false if the call
// must join again.
func (c *call) start(ctx context.Context, held *hold, a *attempt.Attempt) (Decision, bool) {
	id := attempt.NewID(c.replica)
	if a != nil {
		id = a.ID()
	}
	bc := c.context(id)
	run, err := c.preFlight(ctx, bc)
	if err != nil {
		return c.later(err), true
	}
	if len(run) == 0 {
		if a == nil {
			return c.allow(ctx, bc), true
		}
		return c.allowBy(ctx, a, bc)
	}
	if err := c.withoutLease(); err != nil {
		return c.later(err), true
	}
	r := attempt.NewRound(bc, run, c.plugins)
	if a == nil {
		a = c.attempts.Start(ctx, c.key, r, c.budget)
	} else if !c.attempts.Repeat(ctx, a, r) {
		a = nil
	}
	if a == nil {
		if held.over(ctx) {
			return c.later(r.Stopped()), true
		}
		return Decision{}, false
	}
	c.joined = a
	return c.awaitRound(ctx, held, a, r)
}

// awaitRollBack waits for the end of an earlier attempt. It returns false if the call must join
// again.
func (c *call) awaitRollBack(ctx context.Context, held *hold, a *attempt.Attempt, r *attempt.Round) (Decision, bool) {
	if !held.until(ctx, r, a.Over()) {
		if r.OverBudget() {
			return c.later(a.OverBudget(r)), true
		}
		return c.later(framework.Wait(podObject(c.Pod), "waiting for the rollback of an earlier attempt").Advise("retry the Binding")), true
	}
	if !c.runner.StillPending(ctx, r.Pod(), c.key.Pod) {
		return c.later(r.PodChanged()), true
	}
	// The node may have changed during the rollback.
	node, err := c.reader.node(ctx, c.key.Node)
	if err != nil {
		return c.later(err), true
	}
	c.node = node
	return Decision{}, false
}

// awaitRound waits for the end of the round, and allows the bind if it has succeeded. It returns
// false if the call must join again.
func (c *call) awaitRound(ctx context.Context, held *hold, a *attempt.Attempt, r *attempt.Round) (Decision, bool) {
	c.contexts = append(c.contexts, r.Context)
	// The call can bring the turn, and then the bind waits for something else.
	held.turn = r.Context.ReportedWait().Turn
	leave := c.attempts.Attend(r)
	held.until(ctx, r, r.Done())
	leave()
	if !isClosed(r.Done()) {
		if r.OverBudget() {
			// The plugin ignores the end of its context.
			return c.later(a.OverBudget(r)), true
		}
		return c.later(a.Waiting(r, c.clock.Now())), true
	}
	if err := r.Err(); err != nil {
		c.attempts.ErrorReturned(a)
		return c.later(err), true
	}
	if d, ok := c.allowBy(ctx, a, r.Context); ok {
		return d, true
	}
	if err := c.withoutLease(); err != nil {
		return c.later(err), true
	}
	// The attempt was prepared and reached its outcome before this call woke up.
	return c.later(r.PodChanged()), true
}

// withoutLease returns an error if this replica does not hold its lease. Another replica may
// then roll back what an attempt here wrote, so no bind may rely on it.
func (c *call) withoutLease() *framework.Error {
	if _, held := c.term(); held {
		return nil
	}
	err := framework.Wait(podObject(c.Pod), "waiting for this replica of Prebind to renew its lease").
		Advise("retry the Binding")
	err.Plugin = framework.Binder
	return err
}
