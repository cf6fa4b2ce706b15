// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
)

// prepare joins the attempt in progress for this bind. Without one, it runs PreFlight and
// starts an attempt if a plugin has work to do.
func (c *call) prepare(ctx context.Context) Decision {
	held := hold{call: c}
	defer held.release()
	for {
		a, r, at := c.attempts.Join(c.key)
		c.joined = a
		if a != nil {
			if err := c.withoutLease(); err != nil {
				return c.later(err)
			}
		}
		if (at == attempt.Preparing || at == attempt.Failed) && !sameParameters(c.settings.Plugins, c.Binding, c.pod, r.Context) {
			// The attempt, or its error, belongs to other parameters than those of this call.
			c.attempts.Dismiss(a, r)
			at = attempt.RollingBack
		}
		switch at {
		case attempt.Over, attempt.Prepared:
			id := attempt.NewID(c.replica)
			if a != nil {
				id = a.ID()
			}
			bc := c.context(id)
			run, err := c.preFlight(ctx, bc)
			if err != nil {
				return c.later(err)
			}
			if len(run) == 0 {
				if a == nil {
					return c.allow(ctx, bc)
				}
				if d, ok := c.allowBy(ctx, a, bc); ok {
					return d
				}
				continue
			}
			if err := c.withoutLease(); err != nil {
				return c.later(err)
			}
			r = attempt.NewRound(c.settings, bc, run, c.plugins)
			if a == nil {
				a = c.attempts.Start(ctx, c.key, r, c.budget)
			} else if !c.attempts.Repeat(ctx, a, r) {
				a = nil
			}
			if a == nil {
				if held.over(ctx) {
					return c.later(r.Stopped())
				}
				continue
			}
			c.joined = a
		case attempt.RollingBack:
			if !held.until(ctx, r, a.Over()) {
				if r.OverBudget() {
					return c.later(a.OverBudget(r))
				}
				return c.later(framework.Wait(podObject(c.Pod), "waiting for the rollback of an earlier attempt").Advise("retry the Binding"))
			}
			if !c.runner.StillPending(ctx, r.Pod(), c.key.Pod) {
				return c.later(r.PodChanged())
			}
			// The node may have changed during the rollback.
			var err *framework.Error
			if c.node, err = c.reader.node(ctx, c.key.Node); err != nil {
				return c.later(err)
			}
			continue
		case attempt.Preparing, attempt.Failed:
		}
		if !held.until(ctx, r, r.Done()) {
			if r.OverBudget() {
				// The plugin ignores the end of its context.
				return c.later(a.OverBudget(r))
			}
			return c.later(a.Waiting(r, c.clock.Now()))
		}
		if err := r.Err(); err != nil {
			c.attempts.ErrorReturned(a)
			return c.later(err)
		}
		if r.Settings != c.settings {
			// Other plugins, or other arguments, may apply now.
			continue
		}
		if d, ok := c.allowBy(ctx, a, r.Context); ok {
			return d
		}
		if err := c.withoutLease(); err != nil {
			return c.later(err)
		}
		// The attempt was prepared and reached its outcome before this call woke up.
		return c.later(r.PodChanged())
	}
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
