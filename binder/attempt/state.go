// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"slices"
	"sync"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
)

// Observer counts the outcomes of attempts. Its methods are called concurrently, and must
// not block.
type Observer interface {
	// AttemptEnded is called with the outcome of an attempt that had prepared its bind:
	// "bound", "bound by another attempt", or "not bound".
	AttemptEnded(result string)
	// RolledBack is called when the rollback of a plugin has ended: err is why it failed,
	// or nil.
	RolledBack(plugin string, err error)
}

// Options of a Set. All fields are required.
type Options struct {
	Runner *runner.Runner
	// Changes reports changes of pods.
	Changes  *framework.Hub
	Observer Observer
	// Term returns the number of the replica's current term, and whether it holds it. An
	// attempt allows binds only in the term that it began in. Term must be fast, and safe
	// for concurrent use.
	Term  func() (term int64, held bool)
	Clock clock.WithDelayedExecution
}

// Set holds the attempts in progress in this replica, one for each key. It is safe for
// concurrent use.
type Set struct {
	o       Options
	running sync.WaitGroup
	mu      sync.Mutex
	stopped bool
	index
}

// NewSet returns a Set without attempts.
func NewSet(o Options) *Set { return &Set{o: o, index: newIndex()} }

func (s *Set) present(a *Attempt) *Round {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.round
}

// ofThisTerm returns whether the attempt began in the replica's current term.
func (s *Set) ofThisTerm(a *Attempt) bool {
	term, _ := s.o.Term()
	return a.term == term
}

// begin makes r the attempt's round. It must be called with mu held.
func (s *Set) begin(ctx context.Context, a *Attempt, r *Round) {
	a.phase, a.round = Preparing, r
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if a.idle != nil {
		a.idle.Stop()
	}
	a.idle = s.o.Clock.AfterFunc(AbandonAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.giveUp(a, r, errAbandoned)
	})
}

// enter records that the PreBind of a plugin is started.
func (s *Set) enter(a *Attempt, bc *framework.BindContext, p framework.PreBinder) {
	name := p.Name()
	a.plugin.Store(&name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(a.ran, func(r Started) bool { return r.Plugin.Name() == name }); i >= 0 {
		a.ran[i].Context = bc
		return
	}
	a.ran = append(a.ran, Started{Plugin: p, Context: bc})
}

// spend cancels a round when the attempt's budget is spent. All rounds before the first allowed
// call share the budget.
func (s *Set) spend(ctx context.Context, a *Attempt, r *Round) (stop func() bool) {
	left := a.budget
	s.mu.Lock()
	if !a.allowed {
		left -= s.o.Clock.Since(a.started)
	}
	s.mu.Unlock()
	timer := s.o.Clock.AfterFunc(max(left, 0), func() {
		klog.FromContext(ctx).Info("Attempt timed out", "attempt", a.id, "plugin", a.pluginName(), "budget", a.budget)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.giveUp(a, r, ErrBudgetSpent)
	})
	return timer.Stop
}

// prepared allows the calls that wait.
func (s *Set) prepared(a *Attempt, r *Round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.idle.Stop()
	a.phase, a.since = Prepared, s.o.Clock.Now()
	r.close(nil)
}

// giveUp cancels the round if it is still in progress. It must be called with mu held.
func (s *Set) giveUp(a *Attempt, r *Round, cause error) {
	if a.round != r || a.phase != Preparing || r.givenUp {
		return
	}
	r.givenUp = true
	r.cancel(cause)
}

// rollBackUnallowed makes the follower roll back a prepared attempt at once, unless it has
// allowed a call. It must be called with mu held.
func (s *Set) rollBackUnallowed(a *Attempt) {
	if a.phase == Prepared && !a.allowed && s.o.Clock.Since(a.since) < framework.BindSettles {
		a.since = a.since.Add(-framework.BindSettles)
		s.wake(a)
	}
}

func (s *Set) wake(a *Attempt) {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// endFailed stops returning the error to calls. It must be called with mu held.
func (s *Set) endFailed(a *Attempt) {
	a.phase = RollingBack
	if a.rolledBack {
		s.forget(a)
	}
}

// forgotten records that a failed attempt is rolled back. It returns true if that is its end.
// Otherwise the attempt ends when its error has been kept for long enough.
func (s *Set) forgotten(a *Attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.rolledBack = true
	left := a.keptUntil().Sub(s.o.Clock.Now())
	if a.phase == RollingBack || left < 0 {
		s.forget(a)
		return true
	}
	s.o.Clock.AfterFunc(left, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(a)
	})
	return false
}

// end removes the attempt. Calls that wait for a round get the error.
func (s *Set) end(a *Attempt, err *framework.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.round.close(err)
	s.forget(a)
}

// forget removes the attempt. It must be called with mu held.
func (s *Set) forget(a *Attempt) {
	if a.phase == Over {
		return
	}
	a.phase = Over
	a.idle.Stop()
	a.round.cancel(nil)
	a.cancel(nil)
	s.remove(a)
	close(a.over)
	if a.round.err != nil {
		a.ended(a.round.err)
	} else {
		a.ended(nil)
	}
}
