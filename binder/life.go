// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

// run is the life of an attempt.
func (s *attempts) run(ctx context.Context, a *attempt) {
	for {
		r := s.present(a)
		err := s.prepare(ctx, a, r)
		switch {
		case errors.Is(context.Cause(ctx), errStopped):
			s.end(a, stoppedAt(r))
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

// conclude does what the outcome asks for.
func (s *attempts) conclude(ctx context.Context, a *attempt, o outcome) {
	switch o {
	case outcomeBound, outcomeBoundByOther, outcomeNotBound:
		s.recorder.AttemptEnded(string(o))
	case outcomeLeft, outcomePending, outcomeAgain:
	}
	switch o {
	case outcomeBound, outcomeBoundByOther:
		// Whichever attempt bound it: what was written is in use.
		s.commit(ctx, a)
	case outcomeNotBound:
		s.undo(ctx, a)
	case outcomeLeft, outcomePending, outcomeAgain:
	}
}

func (s *attempts) present(a *attempt) *round {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.round
}

// prepare runs one round within the budget. A round that succeeds has succeeded,
// even if it was given up meanwhile: it is followed like every other.
func (s *attempts) prepare(ctx context.Context, a *attempt, r *round) (err *framework.Error) {
	stop := s.spend(ctx, a, r)
	defer stop()
	defer s.endWithPod(ctx, a, r)()
	wait := s.past.Begin(waitKind(r), waitBegan(r.bc, s.clock.Now(), a.budget))
	defer func() { s.past.End(wait, s.clock.Now(), err == nil) }()
	err = preBind(r.ctx, s.recorder, r.plugins, r.bc, func(p framework.PreBinder) { s.enter(a, r.bc, p) })
	if err == nil {
		err = r.confirm(r.ctx)
	}
	if err == nil || !ended(err) {
		return err
	}
	about := framework.Object{Kind: "Pod", Namespace: r.bc.Pod.Namespace, Name: r.bc.Pod.Name}
	switch cause := context.Cause(r.ctx); {
	case errors.Is(cause, errBudgetSpent):
		err = a.tooLong(r)
	case errors.Is(cause, errPodGone), errors.Is(cause, errSuperseded), errors.Is(cause, errAbandoned), errors.Is(cause, errOtherParameters):
		err = framework.Stale(about, "the bind to %s was given up: %v", a.key.node, cause).Because(cause)
	case errors.Is(cause, errLeaseLost):
		err = framework.Wait(about, "the bind to %s begins again: %v", a.key.node, cause).Because(cause).Advise("repeat the Binding")
	}
	return framework.AsError(guardName, err)
}

// endWithPod gives the round up when its pod can no longer be bound by it, whatever the
// plugins wait for. The caller calls stop when the round is over.
func (s *attempts) endWithPod(ctx context.Context, a *attempt, r *round) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.whenUnbindable(ctx, a, podOf(r), func() { s.giveUp(a, r, errPodGone) })
	}()
	return func() {
		cancel()
		<-done
	}
}

// whenUnbindable waits until the attempt's pod is gone, being deleted, or has a node, and
// then calls end with mu held. It does not call end if the context ends first.
func (s *attempts) whenUnbindable(ctx context.Context, a *attempt, name types.NamespacedName, end func()) {
	changed := s.changes.Subscribe(framework.RefTo(&corev1.Pod{}, name.Namespace, name.Name))
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

// canBeBound says whether the attempt's pod is there and without a node. It returns true
// also when the context ends first.
func (s *attempts) canBeBound(ctx context.Context, a *attempt, name types.NamespacedName) bool {
	for !s.stillPending(ctx, name, a.key.pod) {
		// The cache may be behind, so the API server has the last word.
		live, err := s.read(ctx, name)
		if err == nil {
			return framework.WhereaboutsOf(live, a.key.pod, a.key.node) == framework.Pending
		}
		timer := s.clock.NewTimer(readAgain)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return true
		}
	}
	return true
}

// stoppedAt is what calls are told that wait in a process that ends.
func stoppedAt(r *round) *framework.Error {
	about := framework.Object{Kind: "Pod", Namespace: r.bc.Pod.Namespace, Name: r.bc.Pod.Name}
	err := framework.Wait(about, "%v", errStopped).Because(errStopped).Advise("repeat the Binding: another replica goes on with it")
	err.Plugin = guardName
	return err
}

// ended says whether a plugin stopped because its context ended, rather than for
// a reason of its own.
func ended(err error) bool {
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded, errBudgetSpent, errPodGone, errSuperseded, errAbandoned, errOtherParameters, errLeaseLost, errStopped} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// prepared lets the calls that wait go ahead.
func (s *attempts) prepared(a *attempt, r *round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.idle.Stop()
	a.phase, a.since = prepared, s.clock.Now()
	r.close(nil)
}

// fail tells the calls that wait, and undoes what was done: at once, or, when an
// earlier round has let a call go ahead, once it is known that no bind came of it.
// An error that nobody was told is kept for a client that is between two calls, for as
// long as the pod can be bound.
func (s *attempts) fail(ctx context.Context, a *attempt, r *round, err *framework.Error) {
	s.mu.Lock()
	a.idle.Stop()
	told := a.told
	a.phase, a.failedAt = failed, s.clock.Now()
	if told || r.givenUp && !errors.Is(err, errBudgetSpent) || err.Kind == framework.KindWait {
		// Nobody will come to be told, or a call had better begin anew.
		a.phase = undoing
	}
	r.close(err)
	s.mu.Unlock()

	if told {
		s.conclude(ctx, a, s.follow(ctx, a))
	} else {
		s.undo(ctx, a)
	}

	if s.forgotten(a) {
		return
	}
	// Nobody comes to be told of the bind of a pod that is gone.
	s.whenUnbindable(ctx, a, podOf(r), func() { s.forget(a) })
}

// forgotten notes that a failed attempt is undone. It returns true if that is its end.
// Otherwise the attempt ends when its error has been kept for long enough.
func (s *attempts) forgotten(a *attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.undone = true
	left := a.keptUntil().Sub(s.clock.Now())
	if a.phase == undoing || left < 0 {
		s.forget(a)
		return true
	}
	s.clock.AfterFunc(left, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(a)
	})
	return false
}

// end forgets the attempt; calls that still wait for a round get the error.
func (s *attempts) end(a *attempt, err *framework.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.round.close(err)
	s.forget(a)
}

// commit tells the plugins that the bind has come about.
func (s *attempts) commit(ctx context.Context, a *attempt) {
	for _, r := range a.ran {
		post, ok := r.plugin.(framework.PostBinder)
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postBindTimeout)
		err := step(ctx, s.recorder, stepOf(StepPostBind, r.plugin.Name(), r.bc), func(ctx context.Context) error {
			post.PostBind(ctx, r.bc)
			return nil
		})
		cancel()
		if err != nil {
			klog.FromContext(ctx).Error(err, "PostBind failed", "plugin", r.plugin.Name(), "attempt", a.id)
		}
	}
}
