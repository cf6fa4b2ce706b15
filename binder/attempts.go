// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/pacing"
)

const (
	// keepFailure is how long the failure of an attempt is kept for a client that is
	// between two calls, from when it should call again.
	keepFailure = time.Minute
	// abandonAfter is how long an attempt goes on without any call, from when one should
	// have come.
	abandonAfter = time.Minute
)

// Why a round is given up, or an attempt ended, before its time.
var (
	// errBudgetSpent: it took longer than its budget.
	errBudgetSpent = errors.New("the time for this bind is over")
	// errStopped: the process ends. Nothing is undone: the repeated call reaches
	// another replica, which goes on from there.
	errStopped = errors.New("this replica is shutting down")
	// errPodGone: the pod was deleted, or bound without this attempt.
	errPodGone = errors.New("the pod is gone, being deleted, or bound already")
	// errSuperseded: the scheduler has chosen another node for the pod.
	errSuperseded = errors.New("another node was chosen for the pod")
	// errOtherParameters: the scheduler posts the Binding with other parameters of
	// the plugins.
	errOtherParameters = errors.New("the Binding was posted again, with other parameters")
	// errLeaseLost: another replica may have rolled back what the attempt wrote.
	errLeaseLost = errors.New("this replica could not renew its lease for a while")
	// errAbandoned: nobody calls any more.
	errAbandoned = errors.New("nobody has asked for this bind in a while")
)

// attempts are the binds under way in this replica, one for each key. It is
// safe for concurrent use.
type attempts struct {
	clock   clock.WithDelayedExecution
	cached  framework.Reader
	live    framework.Reader
	changes *framework.Hub
	events  events.EventRecorder
	// recorder is never nil.
	recorder Recorder
	// attemptKey is the annotation by which a pod tells which attempt bound it.
	attemptKey string
	// term is Options.Term. It is never nil.
	term func() (int64, bool)

	running sync.WaitGroup
	mu      sync.Mutex
	stopped bool
	index
	// past knows how long rounds take.
	past *pacing.History
}

// join returns the attempt for the key with its present round and phase, or nil
// when there is none. An attempt of an earlier term comes to its end first.
func (s *attempts) join(key attemptKey) (*attempt, *round, phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.byKey[key]
	switch {
	case a == nil:
		return nil, nil, over
	case a.phase == preparing && a.round.givenUp:
		// Its end is none of this call's business.
		return a, a.round, undoing
	case (a.phase == preparing || a.phase == prepared) && !s.ofThisTerm(a):
		s.giveUp(a, a.round, errLeaseLost)
		s.undoUntold(a)
		return a, a.round, undoing
	case a.phase == preparing:
		a.idle.Reset(abandonAfter)
	case a.phase == failed && s.clock.Now().After(a.keptUntil()):
		return a, a.round, undoing
	}
	return a, a.round, a.phase
}

// ofThisTerm says whether the attempt began in the replica's current term.
func (s *attempts) ofThisTerm(a *attempt) bool {
	term, _ := s.term()
	return a.term == term
}

// start begins an attempt, unless another call has begun one meanwhile, the process
// ends, or the replica does not hold its term: then it returns nil. The attempt keeps the values of the call's
// context, but does not end with it. Rounds for the same pod on other nodes that
// are not allowed yet are given up: the scheduler has changed its mind.
func (s *attempts) start(ctx context.Context, key attemptKey, r *round, budget time.Duration) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	term, held := s.term()
	if s.byKey[key] != nil || s.stopped || !held {
		return nil
	}
	for _, other := range s.byPod[key.pod] {
		s.giveUp(other, other.round, errSuperseded)
	}
	a := &attempt{
		key: key, id: r.bc.Attempt, namespace: r.bc.Pod.Namespace, term: term, started: s.clock.Now(), budget: budget,
		over: make(chan struct{}), poke: make(chan struct{}, 1),
	}
	ctx, a.ended = s.recorder.Step(context.WithoutCancel(ctx), stepOf(StepAttempt, "", r.bc))
	ctx, a.cancel = context.WithCancelCause(ctx)
	s.add(a)
	s.begin(ctx, a, r)
	s.running.Go(func() { s.run(ctx, a) })
	return a
}

// begin makes r the attempt's round. It must be called with mu held.
func (s *attempts) begin(ctx context.Context, a *attempt, r *round) {
	a.phase, a.round = preparing, r
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if a.idle != nil {
		a.idle.Stop()
	}
	a.idle = s.clock.AfterFunc(abandonAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.giveUp(a, r, errAbandoned)
	})
}

// giveUp ends the round, if it is still being prepared. It must be called with mu
// held.
func (s *attempts) giveUp(a *attempt, r *round, cause error) {
	if a.round != r || a.phase != preparing || r.givenUp {
		return
	}
	r.givenUp = true
	r.cancel(cause)
}

// again begins another round of a prepared attempt. It returns false when the
// attempt is not prepared any more.
func (s *attempts) again(ctx context.Context, a *attempt, r *round) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.phase != prepared || s.stopped || !s.ofThisTerm(a) {
		return false
	}
	s.begin(context.WithoutCancel(ctx), a, r)
	s.wake(a)
	return true
}

// allowed notes that a call is told that the bind may go ahead. It returns false
// when the attempt is not prepared any more, or the replica does not hold the term
// that the attempt began in: then it may not.
func (s *attempts) allowed(a *attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if term, held := s.term(); a.phase != prepared || !held || a.term != term {
		return false
	}
	a.told, a.since = true, s.clock.Now()
	s.wake(a)
	return true
}

// startedBy returns the plugins whose PreBind was started, in order.
func (s *attempts) startedBy(a *attempt) []ran {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(a.ran)
}

// dismiss gives up a round that is being prepared, or forgets its error: a call
// asks for something else.
func (s *attempts) dismiss(a *attempt, r *round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveUp(a, r, errOtherParameters)
	if a.round == r && a.phase == failed {
		s.endFailed(a)
	}
}

// discard lets an attempt that is prepared be undone at once, unless a call was
// told to go ahead: it has found no call that it could allow.
func (s *attempts) discard(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undoUntold(a)
}

// undoUntold lets an attempt that is prepared be undone at once, unless a call was
// told to go ahead. It must be called with mu held.
func (s *attempts) undoUntold(a *attempt) {
	if a.phase == prepared && !a.told && s.clock.Since(a.since) < framework.BindSettles {
		a.since = a.since.Add(-framework.BindSettles)
		s.wake(a)
	}
}

func (s *attempts) wake(a *attempt) {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// expect notes that a client should call again after that time.
func (s *attempts) expect(a *attempt, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := s.clock.Now().Add(after); next.After(a.expected) {
		a.expected = next
	}
	if a.phase == preparing {
		a.idle.Reset(after + abandonAfter)
	}
}

// toldError notes that a call was told the attempt's error: the next one may
// begin anew.
func (s *attempts) toldError(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.phase == failed {
		s.endFailed(a)
	}
}

// endFailed takes no calls any more that would be told the error. It must be
// called with mu held.
func (s *attempts) endFailed(a *attempt) {
	a.phase = undoing
	if a.undone {
		s.forget(a)
	}
}

// forget must be called with mu held.
func (s *attempts) forget(a *attempt) {
	if a.phase == over {
		return
	}
	a.phase = over
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

// working says whether this attempt is under way in this replica.
func (s *attempts) working(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id] != nil
}

// backlogOf is how many attempts are in progress for pods of the namespace. Its cost
// is independent of their number.
func (s *attempts) backlogOf(namespace string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofNamespace[namespace]
}

// settle waits until every bind that was allowed has come to its outcome, or the
// context ends.
func (s *attempts) settle(ctx context.Context) {
	s.mu.Lock()
	var followed []*attempt
	for _, a := range s.byKey {
		if a.phase == prepared {
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

// stop ends all attempts where they are, keeps new ones from beginning, and waits
// for them until the context ends. It may be called again.
func (s *attempts) stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	for _, a := range s.byKey {
		a.cancel(errStopped)
		a.round.cancel(errStopped)
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

// enter notes that the PreBind of a plugin is started.
func (s *attempts) enter(a *attempt, bc *framework.BindContext, p framework.PreBinder) {
	name := p.Name()
	a.plugin.Store(&name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(a.ran, func(r ran) bool { return r.plugin.Name() == name }); i >= 0 {
		a.ran[i].bc = bc
		return
	}
	a.ran = append(a.ran, ran{plugin: p, bc: bc})
}

// spend gives a round up when the attempt's budget is over. The budget is for all
// rounds together that come before a call is told to go ahead.
func (s *attempts) spend(ctx context.Context, a *attempt, r *round) (stop func() bool) {
	left := a.budget
	s.mu.Lock()
	if !a.told {
		left -= s.clock.Since(a.started)
	}
	s.mu.Unlock()
	timer := s.clock.AfterFunc(max(left, 0), func() {
		klog.FromContext(ctx).Info("An attempt has spent its budget", "attempt", a.id, "plugin", a.pluginName(), "budget", a.budget)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.giveUp(a, r, errBudgetSpent)
	})
	return timer.Stop
}
