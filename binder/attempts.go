// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/api"
)

const (
	// keepFailure is how long the failure of an attempt is kept for a client
	// that is between two calls. client-go comes back within maxRetryAfter.
	keepFailure = time.Minute
	// maxRetryAfter keeps the ten repeats of client-go to a few minutes.
	maxRetryAfter = 15 * time.Second
)

var (
	// errBudgetSpent ends an attempt that took longer than its budget.
	errBudgetSpent = errors.New("the time for this bind is over")
	// errStopped ends the attempts of a process that ends. Nothing is undone: the
	// repeated call reaches another replica, which goes on from there.
	errStopped = errors.New("this replica is shutting down")
)

// attemptKey is what makes two calls the same bind. The request's own UID does
// not: the API server gives every call, and every reinvocation, another.
type attemptKey struct {
	pod  types.UID
	node string
}

// attempts are the binds under way in this replica, one for each key. It is
// safe for concurrent use.
type attempts struct {
	clock  clock.WithDelayedExecution
	budget time.Duration

	running sync.WaitGroup
	mu      sync.Mutex
	byKey   map[attemptKey]*attempt
}

// attempt is the PreBind of one bind. It outlives the calls that wait for it.
type attempt struct {
	key     attemptKey
	bc      *api.BindContext
	started time.Time
	cancel  context.CancelCauseFunc
	done    chan struct{}
	// err is the outcome, to be read once done is closed.
	err *api.Error
	// plugin is the name of the one at work.
	plugin atomic.Pointer[string]
	// calls is guarded by attempts.mu.
	calls int
}

// join returns the attempt for the key, or nil when there is none. Each join
// counts as a call.
func (s *attempts) join(key attemptKey) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.byKey[key]
	if a != nil {
		a.calls++
	}
	return a
}

// start begins the attempt, or joins the one that another call began meanwhile.
// The attempt keeps the values of the call's context, but does not end with it.
func (s *attempts) start(ctx context.Context, key attemptKey, plugins []api.PreBinder, bc *api.BindContext) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.byKey[key]; a != nil {
		a.calls++
		return a
	}
	a := &attempt{key: key, bc: bc, started: s.clock.Now(), done: make(chan struct{}), calls: 1}
	s.byKey[key] = a
	ctx, a.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.running.Go(func() { s.run(ctx, a, plugins) })
	return a
}

// stop ends all attempts and waits for them.
func (s *attempts) stop() {
	s.mu.Lock()
	for _, a := range s.byKey {
		a.cancel(errStopped)
	}
	s.mu.Unlock()
	s.running.Wait()
}

func (s *attempts) run(ctx context.Context, a *attempt, plugins []api.PreBinder) {
	defer a.cancel(nil)
	budget := s.clock.AfterFunc(s.budget, func() { a.cancel(errBudgetSpent) })
	defer budget.Stop()

	err := preBind(ctx, plugins, a.bc, func(plugin string) { a.plugin.Store(&plugin) })
	if err != nil && errors.Is(context.Cause(ctx), errBudgetSpent) {
		err = a.tooLong(s.budget)
	}
	s.finish(a, err)
}

// finish publishes the outcome. A success needs no memory: the next call finds
// everything in place. A failure stays for the client that has to hear of it.
func (s *attempts) finish(a *attempt, err *api.Error) {
	a.err = err
	close(a.done)
	if err == nil {
		s.forget(a)
		return
	}
	s.clock.AfterFunc(keepFailure, func() { s.forget(a) })
}

// forget makes the next call for the key begin anew.
func (s *attempts) forget(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[a.key] == a {
		delete(s.byKey, a.key)
	}
}

// retryAfter grows with every call, so that the repeats of a client, which are
// limited in number, reach far.
func (s *attempts) retryAfter(a *attempt) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(time.Second<<min(a.calls-1, 10), maxRetryAfter)
}

// waiting is the answer to a call that could not wait for the end.
func (a *attempt) waiting(now time.Time) *api.Error {
	w := a.bc.WaitingFor()
	if w.For == "" {
		w.For = "the plugin's work on this bind"
	}
	err := api.Wait(w.Object, "waiting for %s (%s so far)", w.For, now.Sub(a.started).Round(time.Second)).
		Advise("repeat the Binding, as clients that honour Retry-After do by themselves")
	err.Plugin = a.pluginName()
	return err
}

func (a *attempt) tooLong(budget time.Duration) *api.Error {
	w := a.bc.WaitingFor()
	message := "the bind took longer than its budget of %s"
	args := []any{budget}
	if w.For != "" {
		message, args = message+", waiting for %s", append(args, w.For)
	}
	err := api.Refuse(w.Object, message, args...).Because(errBudgetSpent).
		Advise("see why that does not happen, or raise --prebind-timeout")
	err.Plugin = a.pluginName()
	return err
}

func (a *attempt) pluginName() string {
	if name := a.plugin.Load(); name != nil {
		return *name
	}
	return guardName
}
