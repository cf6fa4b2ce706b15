// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"time"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/work"
)

const (
	// MaxRetryAfter is the longest time that Prebind asks a client to wait before it calls again, without its spread.
	MaxRetryAfter = 30 * time.Second
	// minRetry and MaxRetryAfter limit Retry-After of a call that got no seat. atOnce is that of any other.
	minRetry, atOnce = 2 * time.Second, time.Second
)

// take takes a seat, and returns the function that gives it back, or nil if there is none.
func (c *call) take(ctx context.Context) (leave func()) {
	of, most := c.seats.of(c.User, c.settings.MaxHolds)
	size := heldSize(c.pod, c.Binding)
	if !of.take(most, c.Pod.Namespace, size) {
		c.recorder.HoldRefused()
		return nil
	}
	_, ended := c.recorder.Step(ctx, work.Step{Name: work.StepHold, Pod: c.Pod, Node: c.key.Node})
	c.reports = c.clock.Now().Add(reportAfter)
	return func() {
		ended(nil)
		of.leave(c.Pod.Namespace, size)
	}
}

// awaits records what the call waits for, and the answer if it ended now. Over is 1 if it has ended. Then the next one is expected after
// that time.
func (c *call) awaits(err *framework.Error, wait framework.Wait, over int, next time.Duration) {
	c.waits.change(c.key, c.began, func(w *waited) {
		w.calls += over
		w.next = next
		w.pod, w.waiting, w.wait, w.budget = c.Pod, err, wait, c.budget
	})
}

// remember records the decision for the next call. If the client has to wait, the decision says for how long, and the call counts
// as one that had to wait.
func (c *call) remember(d Decision) Decision {
	switch {
	case d.Err == nil && c.calls == 0 && c.changes == nil: // Most binds do not wait.
	case d.Err == nil:
		c.waits.cache.Remove(c.key)
	case d.Err.Kind != framework.KindWait:
		c.waits.reject(c.key)
	default:
		d.RetryAfter = c.retryAfter()
		if d.wait.For == "" {
			d.wait = framework.Wait{Object: d.Err.Object, For: d.Err.Message}
		}
		c.awaits(d.Err, d.wait, 1, d.RetryAfter)
	}
	return d
}

// retryAfter returns when the client should post the Binding again: at once if it probably gets a seat again, and otherwise after half
// of the time that the bind has waited so far, within limits, spread by a quarter.
func (c *call) retryAfter() time.Duration {
	select {
	case <-c.draining:
		// Another replica may have a seat.
		return atOnce
	default:
	}
	if c.held {
		return atOnce
	}
	return RetryAfter(c.clock.Since(c.first), c.jitter())
}

// RetryAfter returns half of the elapsed time, at least 2 s and at most 30 s, plus up to a quarter by
// the jitter from 0 to 1, in whole seconds.
func RetryAfter(elapsed time.Duration, jitter float64) time.Duration {
	after := min(max(elapsed/2, minRetry), MaxRetryAfter)
	after += time.Duration(jitter * float64(after) / 4)
	return after.Round(time.Second)
}
