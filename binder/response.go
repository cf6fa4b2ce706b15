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

const (
	minRetryAfter = 2 * time.Second
	// MaxRetryAfter is the longest time that Prebind asks a client to wait before it calls again.
	MaxRetryAfter = 30 * time.Second
)

// retryAfter returns when the client should call again. It counts the call as one that had to wait.
func (c *call) retryAfter() time.Duration {
	after := time.Second
	// The next call is probably held too, and while this replica shuts down, another one may hold it.
	if !c.held && !isClosed(c.draining) {
		after = pause(c.clock.Since(c.before().since), rand.Float64())
	}
	c.waits.change(c.key, c.began, func(w *waited) { w.calls++ })
	return after
}

// pause returns half of the time that the bind has waited, in whole seconds. random, in [0, 1), spreads it by a quarter, so that
// clients do not return together.
func pause(waited time.Duration, random float64) time.Duration {
	half := float64(min(waited/2, MaxRetryAfter))
	spread := time.Duration(half * (0.75 + random/2))
	return min(max(spread.Truncate(time.Second), minRetryAfter), MaxRetryAfter)
}
