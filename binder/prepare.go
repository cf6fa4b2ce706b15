// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/pacing"
)

const (
	// forgetWaits is when a bind that nobody asks for any more is no repeat: longer than
	// any Retry-After.
	forgetWaits = pacing.MaxGap + 2*time.Minute
	// rememberWaits is how many binds are remembered that had to wait.
	rememberWaits = 10_000
)

// prepare joins the attempt that is under way for this bind, or checks by
// PreFlight and begins one where a plugin has something to do.
func (e *Engine) prepare(ctx context.Context, c *call) Decision {
	held := seat{engine: e, call: c}
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
			bc := c.context(id, e.o.Clock.Now())
			run, err := e.preFlight(ctx, c, bc)
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
			r = newRound(c.settings, bc, run, func(ctx context.Context) *framework.Error { return e.confirm(ctx, c, bc) })
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
			if !held.until(ctx, r, a.over) {
				if errors.Is(context.Cause(r.ctx), errBudgetSpent) {
					return e.later(c, a.tooLong(r))
				}
				return e.later(c, framework.Wait(framework.Object{}, "waiting for an earlier attempt at this bind to be rolled back"))
			}
			if !e.attempts.stillPending(ctx, podOf(r), c.key.pod) {
				return e.later(c, changedMeanwhile(r))
			}
			// That took its time: PreFlight judges the node as it is now.
			var err *framework.Error
			if c.node, err = e.node(ctx, c.key.node); err != nil {
				return e.later(c, err)
			}
			continue
		case preparing, failed:
		}
		if !held.until(ctx, r, r.done) {
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
func (e *Engine) confirm(ctx context.Context, c *call, bc *framework.BindContext) *framework.Error {
	if err := confirmAll(ctx, &e.o, c.plugins, bc); err != nil {
		return err
	}
	_, err := e.compose(ctx, c, additionsOf(bc.Attempt, bc))
	return err
}

// withoutLease returns why no bind may be allowed here that relies on what an attempt
// wrote, or nil.
func (e *Engine) withoutLease(c *call) *framework.Error {
	if _, held := e.o.Term(); held {
		return nil
	}
	about := framework.Object{Kind: "Pod", Namespace: c.Pod.Namespace, Name: c.Pod.Name}
	err := framework.Wait(about, "this replica of Prebind could not renew its lease in time, so another one may roll back what it prepares").
		Advise("repeat the Binding: another replica may answer it")
	err.Plugin = guardName
	return err
}

// changedMeanwhile makes the client call again, to be judged by the pod as it is
// then.
func changedMeanwhile(r *round) *framework.Error {
	about := framework.Object{Kind: "Pod", Namespace: r.bc.Pod.Namespace, Name: r.bc.Pod.Name}
	return framework.Wait(about, "the pod changed while its bind was prepared").Advise("repeat the Binding")
}

// later denies; a client that has to wait is told for how long.
func (e *Engine) later(c *call, err *framework.Error) Decision {
	d := c.preview.deny(framework.AsError(guardName, err))
	if err.Kind == framework.KindWait {
		d.RetryAfter = e.retryAfter(c)
		if c.joined != nil {
			e.attempts.expect(c.joined, d.RetryAfter)
		}
	}
	return d
}

// retryAfter decides when the client should call again; see pacing.RetryAfter. It counts
// the call as one that had to wait.
func (e *Engine) retryAfter(c *call) time.Duration {
	before, now := e.waitedBefore(c), e.o.Clock.Now()
	began := before.since
	if !c.waitBegan.IsZero() {
		began = c.waitBegan
	}
	missed := max(before.missed, c.missed)
	after := time.Second // Where this replica is shutting down, another one may have a seat.
	if !isClosed(e.draining) {
		after = pacing.RetryAfter(pacing.Wait{
			Elapsed: now.Sub(began), Left: c.budget - now.Sub(before.since), Calls: before.calls + missed + 1, Past: e.attempts.past.Past(c.kind, now),
		}, pacing.Pace{
			Held: c.kept, Hold: c.settings.Hold, Crowd: e.attempts.backlogOf(c.Pod.Namespace), Jitter: rand.Float64(),
		})
	}
	e.remember(c, func(w *waited) { w.calls, w.missed, w.next = w.calls+1, missed, now.Add(after) })
	return after
}

// isClosed says whether a channel that carries no values is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// waitKind is the kind of a round's wait.
func waitKind(r *round) pacing.Kind {
	names := make([]string, 0, len(r.plugins))
	for _, p := range r.plugins {
		names = append(names, p.Name())
	}
	return pacing.Kind{Namespace: r.bc.Pod.Namespace, Plugins: strings.Join(names, ",")}
}

// waitBegan returns when the wait for a bind began: at the first call that this replica
// received, or earlier where a plugin saw it begin earlier. A wait that is older than the
// budget belongs to another bind.
func waitBegan(bc *framework.BindContext, first time.Time, budget time.Duration) time.Time {
	began := first
	for _, w := range bc.WouldWaitFor() {
		if !w.Since.IsZero() && w.Since.Before(began) && first.Sub(w.Since) < budget {
			began = w.Since
		}
	}
	return began
}

// seat is the time that one call is held, however often it waits.
type seat struct {
	engine *Engine
	call   *call
	timer  clock.Timer
	// occupant is the call's seat among those of from, or nil.
	occupant *occupant
	from     *seats
	// refused says that there was no seat, or that another call has got it.
	refused bool
}

// until holds the call until the channel is closed, and says whether it was. It does not
// wait where the call gets no seat, nor longer than it keeps the seat.
func (h *seat) until(ctx context.Context, r *round, done <-chan struct{}) bool {
	if isClosed(done) {
		return true
	}
	h.take(r)
	if h.occupant != nil && !h.refused {
		_, ended := h.engine.o.Recorder.Step(ctx, h.call.step(StepHold, h.call.attempt))
		tell := h.engine.tellOfHold(h.call, r)
		select {
		case <-done:
		case <-h.timer.C():
			// It stays over for the rest of the call.
			h.timer.Reset(0)
			h.call.kept = true
		case <-ctx.Done():
			h.call.kept = true
		case <-h.occupant.gone:
			h.refused = true
		case <-h.engine.draining:
		}
		tell.Stop()
		ended(nil)
	}
	return isClosed(done)
}

// take takes a seat, once for the call.
func (h *seat) take(r *round) {
	if h.occupant != nil || h.refused {
		return
	}
	e, c := h.engine, h.call
	c.kind = waitKind(r)
	now := e.o.Clock.Now()
	before := e.waitedBefore(c)
	c.waitBegan = waitBegan(r.bc, before.since, c.budget)
	elapsed, past := now.Sub(c.waitBegan), e.attempts.past.Past(c.kind, now)
	var most int
	h.from, most = e.seatsFor(c)
	last := time.Duration(0)
	if before.calls > 0 {
		last = before.next.Sub(c.waitBegan)
	}
	c.missed = before.missed + pacing.Missed(last, elapsed, pacing.Wait{
		Elapsed: elapsed, Left: c.budget - now.Sub(before.since), Calls: before.calls + before.missed, Past: past,
	}, pacing.Pace{
		Held: h.from.count() < most, Hold: c.settings.Hold, Crowd: e.attempts.backlogOf(c.Pod.Namespace),
	})
	wants := pacing.Occupant{Namespace: c.Pod.Namespace, Calls: before.calls + c.missed + 1}
	if likely, ok := past.Quantile(0.5, elapsed); ok {
		wants.Due = now.Add(likely - elapsed)
	}
	if h.occupant = h.from.take(wants, most, now); h.occupant == nil {
		h.refused = true
		e.o.Recorder.HoldRefused()
		return
	}
	h.timer = e.o.Clock.NewTimer(c.settings.Hold)
}

// over says whether the call has to be answered now.
func (h *seat) over(ctx context.Context) bool {
	if ctx.Err() != nil || isClosed(h.engine.draining) {
		return true
	}
	if h.occupant == nil {
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
	if h.occupant != nil {
		h.timer.Stop()
		h.from.leave(h.occupant)
	}
}
