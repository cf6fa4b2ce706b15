// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/pacing"
)

// allow allows the bind without an attempt.
func (c *call) allow(ctx context.Context, bc *framework.BindContext) Decision {
	add := additionsOf("", c.plugins, bc)
	if add.none() {
		return c.preview
	}
	d, err := c.compose(ctx, add)
	if err != nil {
		return c.later(err)
	}
	return d
}

// allowBy allows the bind that the attempt has prepared, and adds the annotation with the ID of
// the attempt. latest is the context of the last PreFlight or PreBind. It returns false if the
// attempt is no longer prepared. If the bind is not allowed, the attempt ends, unless it began for another user or
// another Binding.
func (c *call) allowBy(ctx context.Context, a *attempt.Attempt, latest *framework.BindContext) (Decision, bool) {
	started := c.attempts.Started(a)
	d, err := c.compose(ctx, additionsOf(a.ID(), c.plugins, latest, started...))
	if err != nil {
		foreign := func(s attempt.Started) bool { return !sameOrigin(c.settings.Plugins, c.Request, s.Context) }
		if !slices.ContainsFunc(started, foreign) {
			c.attempts.Discard(a)
		}
		return c.later(err), true
	}
	if !c.attempts.Allow(a) {
		return Decision{}, false
	}
	c.waits.forget(c.key)
	return d, true
}

// later denies. If the client has to wait, the decision says for how long.
func (c *call) later(err *framework.Error) Decision {
	d := c.preview.deny(framework.AsError(framework.Binder, err))
	if err.Kind == framework.KindWait {
		d.RetryAfter = c.retryAfter()
		if c.joined != nil {
			c.attempts.Expect(c.joined, d.RetryAfter)
		}
	}
	return d
}

// retryAfter returns when the client should call again; see pacing.RetryAfter. It counts the
// call as one that had to wait.
func (c *call) retryAfter() time.Duration {
	before, now := c.before(), c.clock.Now()
	began := before.since
	if !c.waitBegan.IsZero() {
		began = c.waitBegan
	}
	missed := max(before.missed, c.missed)
	after := time.Second // While this replica shuts down, another one may have a seat.
	if !isClosed(c.draining) {
		after = pacing.RetryAfter(pacing.Wait{
			Elapsed: now.Sub(began), Left: c.budget - now.Sub(before.since), Calls: before.calls + missed + 1, Past: c.past.Past(c.kind, now),
		}, pacing.Pace{
			Held: c.kept, Hold: c.settings.Hold, Crowd: c.attempts.Backlog(c.Pod.Namespace), Jitter: rand.Float64(),
		})
	}
	c.waits.change(c.key, c.began, func(w *waited) { w.calls, w.missed, w.next = w.calls+1, missed, now.Add(after) })
	return after
}
