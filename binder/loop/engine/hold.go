// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	oldframework "github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
)

// hold is the time that one call is held, however often it waits.
type hold struct {
	// seats are those of which the call has one, or nil.
	seats *seats
	timer clock.Timer
	// report is the timer of the event about the wait, and ended ends the step.
	report clock.Timer
	ended  func(error)

	mu sync.Mutex
	// waiting is what the call waits for.
	waiting *oldframework.Error
}

// take takes a seat, if there is one. The channel receives when the hold is over.
func (c *call) take(ctx context.Context) (<-chan time.Time, bool) {
	of, most := c.seats.of(c.User, c.settings.MaxHolds)
	if !of.take(most) {
		c.recorder.HoldRefused()
		return nil, false
	}
	h, pod := &c.hold, c.pod
	h.seats, h.timer = of, c.clock.NewTimer(c.settings.Hold)
	_, h.ended = c.recorder.Step(ctx, runner.Step{Name: runner.StepHold, Pod: c.Pod, Node: c.key.Node})
	h.report = c.clock.AfterFunc(reportAfter, func() {
		h.mu.Lock()
		err := h.waiting
		h.mu.Unlock()
		if err != nil {
			c.reportWait(pod, err)
		}
	})
	return h.timer.C(), true
}

// waits records what the call waits for.
func (h *hold) waits(err *oldframework.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = err
}

func (h *hold) release() {
	if h.seats != nil {
		h.timer.Stop()
		h.report.Stop()
		h.ended(nil)
		h.seats.leave()
	}
}
