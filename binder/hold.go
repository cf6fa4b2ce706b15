// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiwait "k8s.io/apimachinery/pkg/util/wait"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/work"
)

const (
	// minRetry and maxRetry limit Retry-After of a call that got no seat, without its spread. atOnce is that of any other.
	minRetry, maxRetry = 2 * time.Second, 30 * time.Second
	atOnce             = time.Second
)

// take takes a seat, and returns the function that gives it back, or nil if there is none.
func (c *call) take(ctx context.Context) (leave func()) {
	seat := c.seats.take(c.User, c.settings.MaxHolds)
	if seat == nil {
		c.full = true
		c.o.Recorder.HoldRefused()
		return nil
	}
	_, ended := c.o.Recorder.Step(ctx, work.Step{Name: work.StepHold, Pod: c.Pod, Node: c.key.Node})
	c.reports = c.o.Clock.Now().Add(reportAfter)
	return func() {
		ended(nil)
		seat()
	}
}

// memory returns about how many bytes the request needs. An item of a map or list needs more than its text.
func (r Request) memory() int {
	items := len(r.Binding.Annotations) + len(r.Binding.Labels) + len(r.User.Groups) + len(r.User.Extra)
	for _, values := range r.User.Extra {
		items += len(values)
	}
	return r.Binding.Size() + r.User.Size() + items*item
}

// item is the size of an empty item, in bytes.
const item = 64

// fits returns whether the namespace has enough memory left for the request, what it waits for, and the pod if the call has its own copy. A call that is about to
// be rejected has no seat, but needs memory, too.
func (c *call) fits() bool {
	size := c.memory() + c.changes.Size()
	if !c.podRead.IsZero() {
		size += c.pod.Size()
	}
	if grown := size - c.size; grown > 0 && !c.seats.grow(c.Pod.Namespace, grown) {
		c.full = true
		c.o.Recorder.HoldRefused()
		return false
	}
	c.size = max(c.size, size)
	return true
}

// awaits records what the call waits for, and the answer if it ended now. Over is 1 if it has ended. Then the next one is expected after
// that time.
func (c *call) awaits(err *framework.Error, wait framework.Wait, over int, next time.Duration) {
	if wait.For == "" {
		wait = framework.Wait{Object: err.Object, For: err.Message}
	}
	c.waits.change(c.key, c.first, func(w *waited) {
		w.calls += over
		w.next, w.allowed = next, time.Time{}
		w.pod, w.waiting, w.wait, w.budget = c.Pod, err, wait, c.budget
	})
}

// retryAfter returns when a client that got no seat should post the Binding again: after half of the time that the bind has waited so
// far, at least 2 s and at most 30 s, plus up to a quarter by chance, in whole seconds.
func retryAfter(waited time.Duration) time.Duration {
	return apiwait.Jitter(min(max(waited/2, minRetry), maxRetry), 0.25).Round(time.Second)
}

// wait waits until something changes that was read, until the step's time, or until the hold ends. It returns finish if the call
// ends. The first time, it only subscribes to changes: the pass that is repeated reads what may have changed before.
func (c *call) wait(ctx context.Context, s step) step {
	if c.changes == nil {
		c.changes = c.o.Changes.Subscribe(notify.RefTo(&corev1.Pod{}, c.Pod.Namespace, c.Pod.Name), notify.RefTo(&corev1.Node{}, "", c.key.Node), notify.AllBinds())
		return step{do: repeat}
	}
	now := c.o.Clock.Now()
	until := c.settles
	c.last = s
	end := c.first.Add(c.budget)
	if s.do == wait && !now.Before(end) {
		return s.end(c.overBudget(s))
	}
	if !c.fits() {
		return s.end(framework.NotYet(podObject(c.Pod), "waiting Bindings and large pods of the namespace use %d MiB", maxHeld>>20).Advise("retry the Binding"))
	}
	if s.do == wait {
		err := c.waiting(s)
		if c.leave == nil {
			if c.leave = c.take(ctx); c.leave == nil {
				return s.end(err)
			}
		}
		c.awaits(err, s.first(), 0, 0)
		c.observe(ctx, s.waits)
		if !c.reports.IsZero() && !now.Before(c.reports) {
			c.reportWait(err)
			c.reports = time.Time{}
		}
		if until = s.until; until.IsZero() || end.Before(until) {
			until = end
		}
	}
	for _, sooner := range []time.Time{c.reports, c.rereads} {
		if !sooner.IsZero() && sooner.Before(until) {
			until = sooner
		}
	}
	pause := pace
	if s.do == reject {
		pause = paceOfRejection
	}
	timer := c.o.Clock.NewTimer(max(until.Sub(now), pause))
	defer timer.Stop()
	select {
	case <-c.changes.C():
	case <-timer.C():
	case <-c.draining:
		return c.ended(ctx, s)
	case <-ctx.Done():
	}
	clear(c.asked)
	if left := pause - c.o.Clock.Since(now); left > 0 {
		select {
		case <-c.o.Clock.After(left):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil { // A pass could only find that it has ended.
		return c.ended(ctx, s)
	}
	return step{do: repeat}
}

// ended returns the end of a call whose hold has ended while it waited as in the step. Writes can last until the end of each call, so it also
// checks the budget.
func (c *call) ended(ctx context.Context, s step) step {
	if len(s.waits) > 0 && !c.o.Clock.Now().Before(c.first.Add(c.budget)) {
		return s.end(c.overBudget(s))
	}
	return s.end(c.waiting(s).Because(cmp.Or(context.Cause(c.stopping), context.Cause(ctx))))
}

// failed returns what to do after the error of a write or of an allowance.
func (c *call) failed(plugin string, err error) step {
	var own *framework.Error
	switch {
	case errors.Is(err, work.Closing):
		return step{do: wait, waits: []framework.Wait{{Object: podObject(c.Pod), For: "the rollback of an earlier attempt"}}}
	case errors.Is(err, work.LeaseLost), errors.Is(err, work.Stopped): // No bind may rely on the work of this replica.
		return step{do: finish, err: framework.NotYet(podObject(c.Pod), "%v", err).Because(err).Advise("retry the Binding")}
	case errors.As(err, &own) && own.Kind == framework.KindWait:
		// The cache is behind, or the API server is slow.
		w := framework.Wait{Object: own.Object, For: own.Message, Until: c.o.Clock.Now().Add(readAgain)}
		c.last = step{do: wait, waits: []framework.Wait{w}, plugin: plugin, until: w.Until}
		return c.last
	default:
		return step{do: finish, err: framework.AsError(plugin, err)}
	}
}

// observe reports to observers what the bind waits for, if that has changed.
func (c *call) observe(ctx context.Context, waits []framework.Wait) {
	same := func(a, b framework.Wait) bool { return a.Object == b.Object && a.For == b.For }
	if slices.EqualFunc(waits, c.observed, same) {
		return
	}
	c.observed = waits
	for _, r := range c.results {
		if o, ok := r.plugin.(framework.Observer); ok {
			// The log reports a panic.
			_ = work.Contain(ctx, func() error { o.BindWaits(ctx, r.bc, waits); return nil })
		}
	}
}
