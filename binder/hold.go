// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/runner"
)

// hold is the time that one call is held, however often it waits.
type hold struct {
	call  *call
	timer clock.Timer
	// seats are those of which the call has one, or nil.
	seats *seats
	// refused says that there was no seat.
	refused bool
	// turn says that a plugin waited for the turn of the bind when the call came.
	turn bool
}

// glance is how long a call without a seat is held if a plugin waits for the turn of its bind. The turn comes only during a call.
const glance = 50 * time.Millisecond

// until holds the call until the channel is closed, and says whether it was. It does not
// wait if the call gets no seat.
func (h *hold) until(ctx context.Context, r *attempt.Round, done <-chan struct{}) bool {
	if isClosed(done) {
		return true
	}
	h.take()
	if h.refused && h.turn {
		h.glance(ctx, done)
	}
	if h.seats != nil {
		_, ended := h.call.recorder.Step(ctx, h.call.step(runner.StepHold, h.call.attemptID()))
		report := h.call.reportHold(r)
		select {
		case <-done:
		case <-h.timer.C():
			// It stays over for the rest of the call.
			h.timer.Reset(0)
			h.call.held = true
		case <-ctx.Done():
			h.call.held = true
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
func (h *hold) take() {
	if h.seats != nil || h.refused {
		return
	}
	c := h.call
	seats, most := c.seats.of(c.User, c.settings.MaxHolds)
	if !seats.take(most) {
		h.refused = true
		c.recorder.HoldRefused()
		return
	}
	h.seats, h.timer = seats, c.clock.NewTimer(c.settings.Hold)
}

// over says whether the call has to be answered now.
func (h *hold) over(ctx context.Context) bool {
	if ctx.Err() != nil || isClosed(h.call.draining) {
		return true
	}
	if h.seats == nil {
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
	if h.seats != nil {
		h.timer.Stop()
		h.seats.leave()
	}
}
