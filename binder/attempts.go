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
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/api"
	"github.com/prebind/prebind/binder/notify"
)

const (
	// keepFailure is how long the failure of an attempt is kept for a client
	// that is between two calls. client-go comes back within maxRetryAfter.
	keepFailure = time.Minute
	// abandonAfter is how long an attempt goes on without any call.
	abandonAfter = time.Minute
	// maxRetryAfter and maxBacklog keep the ten repeats of client-go to a few
	// minutes.
	maxRetryAfter = 15 * time.Second
	maxBacklog    = 15 * time.Second
	// backlogUnit is how many attempts under way make a client wait for another
	// second.
	backlogUnit = 50
)

// Why an attempt is ended before its time.
var (
	// errBudgetSpent: it took longer than its budget.
	errBudgetSpent = errors.New("the time for this bind is over")
	// errStopped: the process ends. Nothing is undone: the repeated call reaches
	// another replica, which goes on from there.
	errStopped = errors.New("this replica is shutting down")
	// errSuperseded: the scheduler has chosen another node for the pod.
	errSuperseded = errors.New("another node was chosen for the pod")
	// errAbandoned: nobody calls any more.
	errAbandoned = errors.New("nobody has asked for this bind in a while")
)

// attempts are the binds under way in this replica, one for each key. It is
// safe for concurrent use.
type attempts struct {
	clock   clock.WithDelayedExecution
	cached  Getter
	live    Getter
	changes *notify.Hub
	events  events.EventRecorder
	// attemptKey is the annotation by which a pod tells which attempt bound it.
	attemptKey string

	running sync.WaitGroup
	mu      sync.Mutex
	stopped bool
	byKey   map[attemptKey]*attempt
}

// join returns the attempt for the key with its present round and phase, or nil
// when there is none. Each join counts as a call.
func (s *attempts) join(key attemptKey) (*attempt, *round, phase) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.byKey[key]
	if a == nil {
		return nil, nil, over
	}
	s.called(a)
	return a, a.round, a.phase
}

// called must be called with mu held.
func (s *attempts) called(a *attempt) {
	a.calls++
	if a.phase == preparing {
		a.idle.Reset(abandonAfter)
	}
}

// start begins an attempt, unless another call has begun one meanwhile: then it
// returns false. The attempt keeps the values of the call's context, but does not
// end with it. Attempts to bind the same pod to other nodes that are not allowed
// yet are ended: the scheduler has changed its mind.
func (s *attempts) start(ctx context.Context, key attemptKey, r *round, budget time.Duration) (*attempt, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[key] != nil {
		return nil, false
	}
	for other, a := range s.byKey {
		if other.pod == key.pod && a.phase == preparing {
			a.cancel(errSuperseded)
		}
	}
	a := &attempt{
		key: key, id: r.bc.Attempt, started: s.clock.Now(), round: r, calls: 1,
		over: make(chan struct{}), poke: make(chan struct{}, 1),
	}
	ctx, a.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if s.stopped {
		a.cancel(errStopped)
	}
	a.idle = s.clock.AfterFunc(abandonAfter, func() { a.cancel(errAbandoned) })
	s.byKey[key] = a
	s.running.Go(func() { s.run(ctx, a, budget) })
	return a, true
}

// again begins another round of a prepared attempt. It returns false when the
// attempt is not prepared any more.
func (s *attempts) again(a *attempt, r *round) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.phase != prepared {
		return false
	}
	a.phase, a.round = preparing, r
	a.idle.Reset(abandonAfter)
	s.wake(a)
	return true
}

// allowed notes that a call was told that the bind may go ahead. It returns
// false when the attempt is not prepared any more: then it may not.
func (s *attempts) allowed(a *attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.phase != prepared {
		return false
	}
	a.allowedAt = s.clock.Now()
	s.wake(a)
	return true
}

func (s *attempts) wake(a *attempt) {
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// told notes that a call was told the attempt's error: the next one may begin
// anew.
func (s *attempts) told(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.phase != failed {
		return
	}
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
	a.cancel(nil)
	delete(s.byKey, a.key)
	close(a.over)
}

// retryAfter grows with every call, so that the repeats of a client, which are
// limited in number, reach far; and with the backlog, so that many clients
// together do not come too often.
func (s *attempts) retryAfter(a *attempt) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	backlog := time.Duration(len(s.byKey)/backlogUnit) * time.Second
	return min(time.Second<<min(a.calls-1, 10), maxRetryAfter) + min(backlog, maxBacklog)
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
// for them until the context ends.
func (s *attempts) stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	for _, a := range s.byKey {
		a.cancel(errStopped)
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
func (s *attempts) enter(a *attempt, bc *api.BindContext, p api.PreBinder) {
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
