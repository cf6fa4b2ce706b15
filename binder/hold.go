// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/pacing"
	"github.com/prebind/prebind/binder/runner"
)

// hold is the time that one call is held, however often it waits.
type hold struct {
	call  *call
	timer clock.Timer
	// occupant is the call's seat among those of from, or nil.
	occupant *occupant
	from     *seats
	// refused says that there was no seat, or that another call has got it.
	refused bool
	// turn says that a plugin waited for the turn of the bind when the call came.
	turn bool
}

// glance is how long a call without a seat is held if a plugin waits for the turn of its bind. The turn comes only during a call.
const glance = 50 * time.Millisecond

// until holds the call until the channel is closed, and says whether it was. It does not
// wait where the call gets no seat, nor longer than it keeps the seat.
func (h *hold) until(ctx context.Context, r *attempt.Round, done <-chan struct{}) bool {
	if isClosed(done) {
		return true
	}
	h.take(r)
	if h.refused && h.turn {
		h.glance(ctx, done)
	}
	if h.occupant != nil && !h.refused {
		_, ended := h.call.recorder.Step(ctx, h.call.step(runner.StepHold, h.call.attemptID()))
		report := h.call.reportHold(r)
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
		case <-h.call.draining:
		}
		report.Stop()
		ended(nil)
	}
	return isClosed(done)
}

// glance holds the call for a moment.
func (h *hold) glance(ctx context.Context, done <-chan struct{}) {
	timer := h.call.clock.NewTimer(glance)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C():
	case <-ctx.Done():
	case <-h.call.draining:
	}
}

// take takes a seat, once for the call.
func (h *hold) take(r *attempt.Round) {
	if h.occupant != nil || h.refused {
		return
	}
	c := h.call
	c.kind = r.WaitKind()
	now, before := c.clock.Now(), c.before()
	c.waitBegan = attempt.WaitBegan(r.Context, before.since, c.budget)
	elapsed, past := now.Sub(c.waitBegan), c.past.Past(c.kind, now)
	var most int
	h.from, most = c.seats.of(c.User, c.settings.MaxHolds)
	last := time.Duration(0)
	if before.calls > 0 {
		last = before.next.Sub(c.waitBegan)
	}
	c.missed = before.missed + pacing.Missed(last, elapsed, pacing.Wait{
		Elapsed: elapsed, Left: c.budget - now.Sub(before.since), Calls: before.calls + before.missed, Past: past,
	}, pacing.Pace{
		Held: h.from.count() < most, Hold: c.settings.Hold, Crowd: c.attempts.Backlog(c.Pod.Namespace),
	})
	wants := pacing.Occupant{Namespace: c.Pod.Namespace, Calls: before.calls + c.missed + 1}
	if likely, ok := past.Quantile(0.5, elapsed); ok {
		wants.Due = now.Add(likely - elapsed)
	}
	if h.occupant = h.from.take(wants, most, now); h.occupant == nil {
		h.refused = true
		c.recorder.HoldRefused()
		return
	}
	h.timer = c.clock.NewTimer(c.settings.Hold)
}

// over says whether the call has to be answered now.
func (h *hold) over(ctx context.Context) bool {
	if ctx.Err() != nil || isClosed(h.call.draining) {
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

func (h *hold) release() {
	if h.occupant != nil {
		h.timer.Stop()
		h.from.leave(h.occupant)
	}
}
