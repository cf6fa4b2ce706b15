// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prebind/prebind/binder/runner"
)

// Join returns the attempt for the key with its present round and phase, or nil and Over
// if there is none. It ends an attempt of an earlier term.
func (s *Set) Join(key Key) (*Attempt, *Round, Phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.byKey[key]
	switch {
	case a == nil:
		return nil, nil, Over
	case a.phase == Preparing && a.round.givenUp:
		// The error of a canceled round is not for this call.
		return a, a.round, RollingBack
	case (a.phase == Preparing || a.phase == Prepared) && !s.ofThisTerm(a):
		s.giveUp(a, a.round, errLeaseLost)
		s.rollBackUnallowed(a)
		return a, a.round, RollingBack
	case a.phase == Preparing:
		a.idle.Reset(AbandonAfter)
	case a.phase == Failed && s.o.Clock.Now().After(a.keptUntil()):
		return a, a.round, RollingBack
	}
	return a, a.round, a.phase
}

// Start begins an attempt. It returns nil if the key has one, the process ends, or the replica
// does not hold its term. The attempt keeps the values of the call's context, but does not end
// with it. Start cancels rounds for the same pod on other nodes, because the scheduler has chosen
// another node.
func (s *Set) Start(ctx context.Context, key Key, r *Round, budget time.Duration) *Attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	term, held := s.o.Term()
	if s.byKey[key] != nil || s.stopped || !held {
		return nil
	}
	for _, other := range s.byPod[key.Pod] {
		s.giveUp(other, other.round, errSuperseded)
	}
	a := &Attempt{
		key: key, id: r.Context.Attempt, term: term, started: s.o.Clock.Now(), budget: budget,
		over: make(chan struct{}), poke: make(chan struct{}, 1),
	}
	ctx, a.ended = s.o.Runner.Tracker.Step(context.WithoutCancel(ctx), runner.StepOf(runner.StepAttempt, "", r.Context))
	ctx, a.cancel = context.WithCancelCause(ctx)
	s.add(a)
	s.begin(ctx, a, r)
	s.running.Go(func() { s.run(ctx, a) })
	return a
}

// Repeat begins another round of a prepared attempt. It returns false if the attempt is no
// longer prepared.
func (s *Set) Repeat(ctx context.Context, a *Attempt, r *Round) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.phase != Prepared || s.stopped || !s.ofThisTerm(a) {
		return false
	}
	s.begin(context.WithoutCancel(ctx), a, r)
	s.wake(a)
	return true
}

// Allow records that a call is allowed. It returns false, and the call must not be allowed,
// if the attempt is no longer prepared, or the replica does not hold the term that the
// attempt began in.
func (s *Set) Allow(a *Attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if term, held := s.o.Term(); a.phase != Prepared || !held || a.term != term {
		return false
	}
	a.allowed, a.since = true, s.o.Clock.Now()
	s.wake(a)
	return true
}

// Attend records that a call waits for the round, until leave is called; see framework.BindContext.Away.
func (s *Set) Attend(r *Round) (leave func()) {
	r.Context.CallBegan()
	s.o.Changes.Changed(r.Context.Calls())
	return func() {
		r.Context.CallEnded()
		s.o.Changes.Changed(r.Context.Calls())
	}
}

// Started returns the plugins whose PreBind was started, in order; the caller owns the
// slice.
func (s *Set) Started(a *Attempt) []Started {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(a.ran)
}

// Dismiss cancels a round in progress, or drops its error, because a call has other parameters.
func (s *Set) Dismiss(a *Attempt, r *Round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveUp(a, r, errOtherParameters)
	if a.round == r && a.phase == Failed {
		s.endFailed(a)
	}
}

// Discard rolls back a prepared attempt at once, unless it has allowed a call.
func (s *Set) Discard(a *Attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rollBackUnallowed(a)
}

// Expect records that a client should call again after that time.
func (s *Set) Expect(a *Attempt, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := s.o.Clock.Now().Add(after); next.After(a.expected) {
		a.expected = next
	}
	if a.phase == Preparing {
		a.idle.Reset(after + AbandonAfter)
	}
}

// ErrorReturned records that a call received the attempt's error. The next call can begin
// another attempt.
func (s *Set) ErrorReturned(a *Attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.phase == Failed {
		s.endFailed(a)
	}
}

// Working returns whether the attempt is in progress in this replica. Its cost is
// independent of the number of attempts.
func (s *Set) Working(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id] != nil
}

// Settle waits until the outcome of every allowed bind is known, or the context ends.
func (s *Set) Settle(ctx context.Context) {
	s.mu.Lock()
	var followed []*Attempt
	for _, a := range s.byKey {
		if a.phase == Prepared {
			followed = append(followed, a)
		}
	}
	s.mu.Unlock()
	for _, a := range followed {
		select {
		case <-a.over:
		case <-ctx.Done():
			return
		}
	}
}

// Stop ends all attempts where they are, prevents new ones, and waits for their end until
// the context ends. It may be called again.
func (s *Set) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	for _, a := range s.byKey {
		a.cancel(ErrStopped)
		a.round.cancel(ErrStopped)
	}
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		s.running.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("attempts did not end in time: %w", ctx.Err())
	}
}
