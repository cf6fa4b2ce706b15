// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
)

// hold is the seat of a call that waits.
type hold struct {
	// leave gives the seat back. It is nil without a seat.
	leave func()
	// report is the timer of the event about the wait, and ended ends the step.
	report clock.Timer
	ended  func(error)
}

// take takes a seat, if there is one.
func (c *call) take(ctx context.Context) bool {
	of, most := c.seats.of(c.User, c.settings.MaxHolds)
	size := heldSize(c.pod, c.Binding)
	if !of.take(most, c.Pod.Namespace, size) {
		c.recorder.HoldRefused()
		return false
	}
	h, pod := &c.hold, c.pod
	h.leave = func() { of.leave(c.Pod.Namespace, size) }
	_, h.ended = c.recorder.Step(ctx, runner.Step{Name: runner.StepHold, Pod: c.Pod, Node: c.key.Node})
	h.report = c.clock.AfterFunc(reportAfter, func() {
		if err := c.waits.before(c.key, c.began).waiting; err != nil {
			c.reportWait(pod, err)
		}
	})
	return true
}

// awaits records what the call waits for, and the answer if it ended now.
func (c *call) awaits(err *framework.Error, wait framework.Wait) {
	c.Engine.waits.change(c.key, c.began, func(w *waited) { w.pod, w.waiting, w.wait, w.budget = c.Pod, err, wait, c.budget })
}

func (h *hold) release() {
	if h.leave != nil {
		h.report.Stop()
		h.ended(nil)
		h.leave()
	}
}
