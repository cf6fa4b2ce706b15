// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/api"
)

// run is the life of an attempt.
func (s *attempts) run(ctx context.Context, a *attempt, budget time.Duration) {
	for {
		r := s.present(a)
		err := s.prepare(ctx, a, r, budget)
		switch {
		case errors.Is(context.Cause(ctx), errStopped):
			s.end(a, r, stoppedAt(r))
			return
		case err != nil:
			s.fail(ctx, a, r, err)
			return
		}
		s.prepared(a, r)
		switch s.follow(ctx, a) {
		case outcomeAgain:
			continue
		case outcomeBound:
			s.commit(ctx, a)
			s.end(a, r, nil)
		case outcomeBoundByOther, outcomeLeft:
			s.end(a, r, nil)
		default:
			s.mark(a, undoing)
			s.undo(ctx, a)
			s.end(a, r, nil)
		}
		return
	}
}

func (s *attempts) present(a *attempt) *round {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.round
}

// prepare runs one round within the budget.
func (s *attempts) prepare(ctx context.Context, a *attempt, r *round, budget time.Duration) *api.Error {
	timer := s.clock.AfterFunc(budget, func() { a.cancel(errBudgetSpent) })
	defer timer.Stop()
	err := preBind(ctx, r.plugins, r.bc, func(p api.PreBinder) { s.enter(a, r.bc, p) })
	if err == nil || !ended(err) {
		return err
	}
	about := api.Object{Kind: "Pod", Namespace: r.bc.Pod.Namespace, Name: r.bc.Pod.Name}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errBudgetSpent):
		err = a.tooLong(r, budget)
	case errors.Is(cause, errSuperseded), errors.Is(cause, errAbandoned):
		err = api.Stale(about, "the bind to %s was given up: %v", a.key.node, cause).Because(cause)
	}
	return api.AsError(guardName, err)
}

// stoppedAt is what calls are told that wait in a process that ends.
func stoppedAt(r *round) *api.Error {
	about := api.Object{Kind: "Pod", Namespace: r.bc.Pod.Namespace, Name: r.bc.Pod.Name}
	err := api.Wait(about, "%v", errStopped).Because(errStopped).Advise("repeat the Binding: another replica goes on with it")
	err.Plugin = guardName
	return err
}

// ended says whether a plugin stopped because its context ended, rather than for
// a reason of its own.
func ended(err error) bool {
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded, errBudgetSpent, errSuperseded, errAbandoned, errStopped} {
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
	a.phase, a.allowedAt = prepared, s.clock.Now()
	close(r.done)
}

// fail tells the calls that wait, and undoes what was done. An error that nobody
// was told is kept for a client that is between two calls.
func (s *attempts) fail(ctx context.Context, a *attempt, r *round, err *api.Error) {
	s.mu.Lock()
	a.idle.Stop()
	a.phase, r.err = failed, err
	if errors.Is(err, errAbandoned) || errors.Is(err, errSuperseded) {
		// Nobody will come to be told.
		a.phase = undoing
	}
	close(r.done)
	s.mu.Unlock()

	s.undo(ctx, a)

	s.mu.Lock()
	defer s.mu.Unlock()
	a.undone = true
	if a.phase == undoing {
		s.forget(a)
		return
	}
	s.clock.AfterFunc(keepFailure, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(a)
	})
}

// end forgets the attempt; calls that still wait for the round get the error.
func (s *attempts) end(a *attempt, r *round, err *api.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-r.done:
	default:
		r.err = err
		close(r.done)
	}
	s.forget(a)
}

func (s *attempts) mark(a *attempt, p phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.phase = p
}

// commit tells the plugins that the bind has come about.
func (s *attempts) commit(ctx context.Context, a *attempt) {
	for _, r := range a.ran {
		post, ok := r.plugin.(api.PostBinder)
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postBindTimeout)
		err := contained(ctx, func() error {
			post.PostBind(ctx, r.bc)
			return nil
		})
		cancel()
		if err != nil {
			klog.FromContext(ctx).Error(err, "PostBind failed", "plugin", r.plugin.Name(), "attempt", a.id)
		}
	}
}
