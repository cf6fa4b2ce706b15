// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/api"
)

const (
	// maxRetryAfter and maxBacklog keep the ten repeats of client-go to a few
	// minutes.
	maxRetryAfter = 15 * time.Second
	maxBacklog    = 15 * time.Second
	// backlogUnit is how many attempts under way make a client wait for another
	// second.
	backlogUnit = 50
	// forgetWaits is when a bind that nobody asks for any more is no repeat.
	forgetWaits = 2 * time.Minute
	// rememberWaits is how many binds are remembered that had to wait.
	rememberWaits = 10_000
)

// prepare joins the attempt that is under way for this bind, or checks by
// PreFlight and begins one where a plugin has something to do.
func (e *Engine) prepare(ctx context.Context, c *call) Decision {
	held := seat{engine: e, call: c, hold: c.settings.Hold, most: c.settings.MaxHolds}
	defer held.release()
	for {
		a, r, at := e.attempts.join(c.key)
		c.join(a)
		if a != nil {
			if err := e.withoutLease(c); err != nil {
				return e.later(c, err)
			}
		}
		if (at == preparing || at == failed) && !e.sameParameters(c, r.bc) {
			// What is under way, or its error, is not what this call asks for.
			e.attempts.dismiss(a, r)
			at = undoing
		}
		switch at {
		case over, prepared:
			id := e.newAttemptID()
			if a != nil {
				id = a.id
			}
			bc := c.context(id)
			run, err := preFlight(ctx, e.o.Tracker, c.plugins, bc)
			if err != nil {
				return e.later(c, err)
			}
			if len(run) == 0 {
				if a == nil {
					return e.allow(ctx, c, bc)
				}
				if d, ok := e.allowBy(ctx, c, a, bc); ok {
					return d
				}
				continue
			}
			if err := e.withoutLease(c); err != nil {
				return e.later(c, err)
			}
			r = newRound(c.settings, bc, run, func(ctx context.Context) *api.Error { return e.confirm(ctx, c, bc) })
			if a == nil {
				a = e.attempts.start(ctx, c.key, r, c.budget)
			} else if !e.attempts.again(ctx, a, r) {
				a = nil
			}
			if a == nil {
				if held.over(ctx) {
					return e.later(c, stoppedAt(r))
				}
				continue
			}
			c.join(a)
		case undoing:
			if !held.until(ctx, a.over) {
				if errors.Is(context.Cause(r.ctx), errBudgetSpent) {
					return e.later(c, a.tooLong(r))
				}
				return e.later(c, api.Wait(api.Object{}, "waiting for an earlier attempt at this bind to be rolled back"))
			}
			if !e.attempts.stillPending(ctx, podOf(r), c.key.pod) {
				return e.later(c, changedMeanwhile(r))
			}
			// That took its time: PreFlight judges the node as it is now.
			var err *api.Error
			if c.node, err = e.node(ctx, c.key.node); err != nil {
				return e.later(c, err)
			}
			continue
		case preparing, failed:
		}
		if !held.until(ctx, r.done) {
			if errors.Is(context.Cause(r.ctx), errBudgetSpent) {
				// The plugin does not listen.
				return e.later(c, a.tooLong(r))
			}
			return e.later(c, a.waiting(r, e.o.Clock.Now()))
		}
		if r.err != nil {
			e.attempts.toldError(a)
			return e.later(c, r.err)
		}
		if r.settings != c.settings {
			// Other plugins may take part now, or judge otherwise.
			continue
		}
		if d, ok := e.allowBy(ctx, c, a, r.bc); ok {
			return d
		}
		if err := e.withoutLease(c); err != nil {
			return e.later(c, err)
		}
		// It was prepared, and came to its outcome before this call heard of it.
		return e.later(c, changedMeanwhile(r))
	}
}

// confirm takes the last look at a round whose PreBinds have succeeded.
func (e *Engine) confirm(ctx context.Context, c *call, bc *api.BindContext) *api.Error {
	if err := confirmAll(ctx, e.o.Tracker, c.plugins, bc); err != nil {
		return err
	}
	_, err := e.compose(ctx, c, additionsOf(bc.Attempt, bc))
	return err
}

// withoutLease returns why no bind may be allowed here that relies on what an attempt
// wrote, or nil.
func (e *Engine) withoutLease(c *call) *api.Error {
	if _, held := e.o.Term(); held {
		return nil
	}
	about := api.Object{Kind: "Pod", Namespace: c.Pod.Namespace, Name: c.Pod.Name}
	err := api.Wait(about, "this replica of Prebind could not renew its lease in time, so another one may roll back what it prepares").
		Advise("repeat the Binding: another replica may answer it")
	err.Plugin = guardName
	return err
}

// changedMeanwhile makes the client call again, to be judged by the pod as it is
// then.
func changedMeanwhile(r *round) *api.Error {
	about := api.Object{Kind: "Pod", Namespace: r.bc.Pod.Namespace, Name: r.bc.Pod.Name}
	return api.Wait(about, "the pod changed while its bind was prepared").Advise("repeat the Binding")
}

// later denies; a client that has to wait is told for how long.
func (e *Engine) later(c *call, err *api.Error) Decision {
	d := c.preview.deny(api.AsError(guardName, err))
	if err.Kind == api.KindWait {
		d.RetryAfter = e.retryAfter(c)
	}
	return d
}

// retryAfter grows with every call that has to wait, so that the repeats of a
// client, which are limited in number, reach far; and with the backlog, so that
// many clients together do not come too often.
func (e *Engine) retryAfter(c *call) time.Duration {
	before := e.waitedBefore(c)
	e.waits.Add(c.key, waited{calls: before.calls + 1, since: before.since}, forgetWaits)
	backlog := time.Duration(e.attempts.backlog()/backlogUnit) * time.Second
	return min(time.Second<<min(before.calls, 10), maxRetryAfter) + min(backlog, maxBacklog)
}

// seat is the time that one call is kept waiting, however often it waits.
type seat struct {
	engine *Engine
	call   *call
	// hold is how long it is kept at most, and most how many calls are at a time.
	hold   time.Duration
	most   int
	timer  clock.Timer
	seated bool
	// refused says that there was no seat.
	refused bool
}

// until keeps the call until the channel is closed and says whether it was. Where
// too many calls are kept already, or the process ends, it does not wait.
func (h *seat) until(ctx context.Context, done <-chan struct{}) bool {
	switch {
	case h.seated:
	case h.engine.sit(h.most):
		h.seated = true
		h.timer = h.engine.o.Clock.NewTimer(h.hold)
	case !h.refused:
		h.refused = true
		h.engine.o.Tracker.HoldRefused()
	}
	if h.seated {
		_, ended := h.engine.o.Tracker.Step(ctx, h.call.step(StepHold, h.call.attempt))
		select {
		case <-done:
		case <-h.timer.C():
			// It stays over for the rest of the call.
			h.timer.Reset(0)
		case <-ctx.Done():
		case <-h.engine.draining:
		}
		ended(nil)
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// over says whether the call has to be answered now.
func (h *seat) over(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	case <-h.engine.draining:
		return true
	default:
	}
	if !h.seated {
		return false
	}
	select {
	case <-h.timer.C():
		h.timer.Reset(0)
		return true
	default:
		return false
	}
}

func (h *seat) release() {
	if h.seated {
		h.timer.Stop()
		h.engine.holding.Add(-1)
	}
}

// sit takes a seat, if not that many are taken.
func (e *Engine) sit(most int) bool {
	for {
		taken := e.holding.Load()
		if taken >= int64(most) {
			return false
		}
		if e.holding.CompareAndSwap(taken, taken+1) {
			return true
		}
	}
}
