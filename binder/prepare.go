// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"time"

	"github.com/prebind/prebind/binder/api"
)

// rehearse runs the PreFlight of a dry run and tells what a bind would do.
func (e *Engine) rehearse(ctx context.Context, bc *api.BindContext, d Decision) Decision {
	if _, err := preFlight(ctx, e.o.Plugins, bc); err != nil {
		return d.deny(err)
	}
	for _, intent := range bc.Intents() {
		d.Warnings = append(d.Warnings, "dry run: "+intent)
	}
	return d
}

// prepare joins the attempt that is under way for this bind, or checks by
// PreFlight and begins one where a plugin has something to do.
func (e *Engine) prepare(ctx context.Context, bc *api.BindContext, d Decision, budget time.Duration) Decision {
	key := attemptKey{pod: bc.Pod.UID, node: bc.Node.Name}
	for {
		a, r, at := e.attempts.join(key)
		switch at {
		case over, prepared:
			if a != nil {
				bc.Attempt = a.id
			}
			run, err := preFlight(ctx, e.o.Plugins, bc)
			if err != nil {
				return d.deny(err)
			}
			if len(run) == 0 {
				if a == nil {
					return d
				}
				if e.attempts.allowed(a) {
					return e.bindBy(a, d)
				}
				continue
			}
			r = newRound(bc, run)
			var current bool
			if a == nil {
				a, current = e.attempts.start(ctx, key, r, budget)
			} else {
				current = e.attempts.again(a, r)
			}
			if !current {
				continue
			}
		case undoing:
			if !e.hold(ctx, a.over) {
				return e.later(a, d, api.Wait(api.Object{}, "waiting for an earlier attempt at this bind to be rolled back"))
			}
			continue
		case preparing, failed:
		}
		if !e.hold(ctx, r.done) {
			return e.later(a, d, a.waiting(r, e.o.Clock.Now()))
		}
		if r.err != nil {
			e.attempts.told(a)
			return e.later(a, d, r.err)
		}
		if e.attempts.allowed(a) {
			return e.bindBy(a, d)
		}
	}
}

// bindBy lets the bind go ahead and makes the pod tell which attempt it was.
func (e *Engine) bindBy(a *attempt, d Decision) Decision {
	d.Annotations[attemptAnnotation(e.o.Domain)] = a.id
	return d
}

// later denies; a client that has to wait is told for how long.
func (e *Engine) later(a *attempt, d Decision, err *api.Error) Decision {
	d = d.deny(api.AsError(guardName, err))
	if err.Kind == api.KindWait {
		d.RetryAfter = e.attempts.retryAfter(a)
	}
	return d
}

// hold keeps the call until the channel is closed and says whether it was. Where
// too many calls are kept already, or the process ends, it does not wait.
func (e *Engine) hold(ctx context.Context, until <-chan struct{}) bool {
	ended := func() bool {
		select {
		case <-until:
			return true
		default:
			return false
		}
	}
	select {
	case e.holds <- struct{}{}:
		defer func() { <-e.holds }()
	default:
		return ended()
	}
	timer := e.o.Clock.NewTimer(e.o.Hold)
	defer timer.Stop()
	select {
	case <-until:
	case <-timer.C():
	case <-ctx.Done():
	case <-e.draining:
	}
	return ended()
}
