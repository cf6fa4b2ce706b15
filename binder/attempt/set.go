// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/pacing"
	"github.com/prebind/prebind/binder/runner"
)

const (
	// KeepFailure is how long the failure of an attempt is kept for a client that is between
	// two calls, after the time when it should call again.
	KeepFailure = time.Minute
	// AbandonAfter is how long an attempt continues without a call, after the time when one
	// should have come.
	AbandonAfter = time.Minute
)

// Why a round is given up, or an attempt ended, early.
const (
	// ErrBudgetSpent: it took longer than its budget.
	ErrBudgetSpent = runner.Cause("the time for this bind is over")
	// ErrStopped: the process ends. Nothing is rolled back: the repeated call reaches
	// another replica, which continues from there.
	ErrStopped = runner.Cause("this replica is shutting down")
	// errPodGone: the pod was deleted, or bound without this attempt.
	errPodGone = runner.Cause("the pod is gone, being deleted, or bound already")
	// errSuperseded: the scheduler has chosen another node for the pod.
	errSuperseded = runner.Cause("another node was chosen for the pod")
	// errOtherParameters: the scheduler posts the Binding with other parameters of
	// the plugins.
	errOtherParameters = runner.Cause("the Binding was posted again, with other parameters")
	// errLeaseLost: another replica may have rolled back what the attempt wrote.
	errLeaseLost = runner.Cause("this replica could not renew its lease for a while")
	// errAbandoned: the client stopped calling.
	errAbandoned = runner.Cause("nobody has asked for this bind in a while")
)

// Options of a Set. All fields are required.
type Options struct {
	Runner *runner.Runner
	// Changes reports changes of pods.
	Changes  *framework.Hub
	Observer Observer
	// Term returns the number of the replica's current term, and whether it holds it. An
	// attempt allows binds only in the term that it began in. Term must be fast, and safe
	// for concurrent use.
	Term func() (term int64, held bool)
	// Past records how long rounds take.
	Past  *pacing.History
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
		// The error of a round that was given up is not for this call.
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

// ofThisTerm returns whether the attempt began in the replica's current term.
func (s *Set) ofThisTerm(a *Attempt) bool {
	term, _ := s.o.Term()
	return a.term == term
}

// Start begins an attempt. It returns nil if there is one for the key already, the process
// ends, or the replica does not hold its term. The attempt keeps the values of the call's
// context, but does not end with it. Start gives up rounds for the same pod on other nodes
// that have not allowed a call, because the scheduler has chosen another node.
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
		key: key, id: r.Context.Attempt, namespace: r.Context.Pod.Namespace, term: term, started: s.o.Clock.Now(), budget: budget,
		over: make(chan struct{}), poke: make(chan struct{}, 1),
	}
	ctx, a.ended = s.o.Runner.Tracker.Step(context.WithoutCancel(ctx), runner.StepOf(runner.StepAttempt, "", r.Context))
	ctx, a.cancel = context.WithCancelCause(ctx)
	s.add(a)
	s.begin(ctx, a, r)
	s.running.Go(func() { s.run(ctx, a) })
	return a
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

// giveUp ends the round, if it is still being prepared. It must be called with mu
// held.
func (s *Set) giveUp(a *Attempt, r *Round, cause error) {
	if a.round != r || a.phase != Preparing || r.givenUp {
		return
	}
	r.givenUp = true
	r.cancel(cause)
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

// Started returns the plugins whose PreBind was started, in order; the caller owns the
// slice.
func (s *Set) Started(a *Attempt) []Started {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(a.ran)
}

// Dismiss gives up a round in progress, or forgets its error, because a call has other
// parameters.
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

// endFailed stops returning the error to calls. It must be called with mu held.
func (s *Set) endFailed(a *Attempt) {
	a.phase = RollingBack
	if a.rolledBack {
		s.forget(a)
	}
}

// forget must be called with mu held.
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

// Working returns whether the attempt is in progress in this replica. Its cost is
// independent of the number of attempts.
func (s *Set) Working(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id] != nil
}

// Backlog returns how many attempts are in progress for pods of the namespace. Its cost is
// independent of their number.
func (s *Set) Backlog(namespace string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofNamespace[namespace]
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

// spend gives up a round when the attempt's budget is spent. All rounds before the first
// allowed call share the budget.
func (s *Set) spend(ctx context.Context, a *Attempt, r *Round) (stop func() bool) {
	left := a.budget
	s.mu.Lock()
	if !a.allowed {
		left -= s.o.Clock.Since(a.started)
	}
	s.mu.Unlock()
	timer := s.o.Clock.AfterFunc(max(left, 0), func() {
		klog.FromContext(ctx).Info("An attempt has spent its budget", "attempt", a.id, "plugin", a.pluginName(), "budget", a.budget)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.giveUp(a, r, ErrBudgetSpent)
	})
	return timer.Stop
}
