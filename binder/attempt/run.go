// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
)

// run is the life of an attempt.
func (s *Set) run(ctx context.Context, a *Attempt) {
	for {
		r := s.present(a)
		err := s.prepare(ctx, a, r)
		switch {
		case errors.Is(context.Cause(ctx), ErrStopped):
			s.end(a, r.Stopped())
			return
		case err != nil:
			s.fail(ctx, a, r, err)
			return
		}
		s.prepared(a, r)
		o := s.follow(ctx, a)
		if o == outcomeAgain {
			continue
		}
		s.conclude(ctx, a, o)
		s.end(a, nil)
		return
	}
}

// prepare runs one round within the budget. A round that succeeds is followed to its
// outcome even if it was canceled in the meantime.
func (s *Set) prepare(ctx context.Context, a *Attempt, r *Round) *framework.Error {
	stop := s.spend(ctx, a, r)
	defer stop()
	defer s.endWithPod(ctx, a, r)()
	err := s.o.Runner.PreBind(r.ctx, r.Plugins, r.Context, func(p framework.PreBinder) { s.enter(a, r.Context, p) })
	if err == nil {
		err = s.o.Runner.Confirm(r.ctx, r.Confirm, r.Context)
	}
	if err == nil || !runner.Ended(err) {
		return err
	}
	about := r.about()
	switch cause := context.Cause(r.ctx); {
	case errors.Is(cause, ErrBudgetSpent):
		err = a.OverBudget(r)
	case errors.Is(cause, errPodGone), errors.Is(cause, errSuperseded), errors.Is(cause, errAbandoned), errors.Is(cause, errOtherParameters):
		err = framework.Stale(about, "bind to %s canceled: %v", a.key.Node, cause).Because(cause)
	case errors.Is(cause, errLeaseLost):
		err = framework.Wait(about, "bind to %s starts again: %v", a.key.Node, cause).Because(cause).Advise("retry the Binding")
	}
	return framework.AsError(framework.Binder, err)
}

// endWithPod cancels the round when its pod can no longer be bound. The caller calls stop when
// the round is over.
func (s *Set) endWithPod(ctx context.Context, a *Attempt, r *Round) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.whenUnbindable(ctx, a, r.Pod(), func() { s.giveUp(a, r, errPodGone) })
	}()
	return func() {
		cancel()
		<-done
	}
}

// whenUnbindable waits until the attempt's pod is gone, terminating or bound, and then calls end
// with mu held. It does not call end if the context ends first.
func (s *Set) whenUnbindable(ctx context.Context, a *Attempt, name types.NamespacedName, end func()) {
	changed := s.o.Changes.Subscribe(framework.RefTo(&corev1.Pod{}, name.Namespace, name.Name))
	defer changed.Close()
	for s.canBeBound(ctx, a, name) {
		select {
		case <-changed.C():
		case <-ctx.Done():
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	end()
}

// canBeBound returns whether the attempt's pod exists without a node. It also returns true if the
// context ends first.
func (s *Set) canBeBound(ctx context.Context, a *Attempt, name types.NamespacedName) bool {
	for !s.o.Runner.StillPending(ctx, name, a.key.Pod) {
		// The cache may be behind, so the live pod decides.
		live, err := s.o.Runner.LivePod(ctx, name)
		if err == nil {
			return framework.WhereaboutsOf(live, a.key.Pod, a.key.Node) == framework.Pending
		}
		timer := s.o.Clock.NewTimer(ReadAgain)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return true
		}
	}
	return true
}

// fail returns the error to the calls that wait, and rolls back: at once, or, if an earlier
// round has allowed a call, when it is known that the pod was not bound. An error that no
// call has received is kept for a client that is between two calls, as long as the pod can
// be bound.
func (s *Set) fail(ctx context.Context, a *Attempt, r *Round, err *framework.Error) {
	s.mu.Lock()
	a.idle.Stop()
	allowed := a.allowed
	a.phase, a.failedAt = Failed, s.o.Clock.Now()
	if allowed || r.givenUp && !errors.Is(err, ErrBudgetSpent) || err.Kind == framework.KindWait {
		// No client waits for this error, or the next call should begin another attempt.
		a.phase = RollingBack
	}
	r.close(err)
	s.mu.Unlock()

	if allowed {
		s.conclude(ctx, a, s.follow(ctx, a))
	} else {
		s.rollBack(ctx, a)
	}

	if s.forgotten(a) {
		return
	}
	// No client needs the failure once the pod is gone.
	s.whenUnbindable(ctx, a, r.Pod(), func() { s.forget(a) })
}

// conclude carries out the outcome.
func (s *Set) conclude(ctx context.Context, a *Attempt, o outcome) {
	switch o {
	case outcomeBound, outcomeBoundByOther:
		// The pod uses the writes, whichever attempt bound it.
		s.o.Observer.AttemptEnded(string(o))
		s.commit(ctx, a)
	case outcomeNotBound:
		s.o.Observer.AttemptEnded(string(o))
		s.rollBack(ctx, a)
	case outcomeLeft, outcomePending, outcomeAgain:
	}
}
