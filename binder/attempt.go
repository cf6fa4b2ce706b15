// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
)

// attemptKey is what makes two calls the same bind. The request's own UID does
// not: the API server gives every call, and every reinvocation, another.
type attemptKey struct {
	pod  types.UID
	node string
}

// phase is how far an attempt is.
//
//	preparing ─▶ prepared ─▶ over               the pod is bound
//	    │  ▲        │  ╰──────▶ undoing ─▶ over   it is not
//	    │  ╰────────╯ the scheduler binds again, and something is to be done
//	    ╰▶ failed ─▶ undoing ─▶ over
type phase int

const (
	// preparing runs PreBind; calls wait for the end of the round.
	preparing phase = iota
	// prepared has allowed the bind and follows it to its outcome.
	prepared
	// failed has an error that no call was told yet; it is being undone already.
	failed
	// undoing rolls back; calls wait until it is over and begin anew.
	undoing
	// over is forgotten.
	over
)

// attempt is the work for one bind, from the first PreBind to the outcome. It
// outlives the calls that wait for it.
type attempt struct {
	key attemptKey
	// id marks what plugins write.
	id string
	// namespace is that of the pod.
	namespace string
	// term is the replica's when the attempt began. In another one it allows no bind.
	term    int64
	started time.Time
	budget  time.Duration
	// cancel ends the attempt with the process; what ends a round is in the round.
	cancel context.CancelCauseFunc
	// idle gives up a round that no call has asked for in a while.
	idle clock.Timer
	// ended tells the tracker how it ended.
	ended func(err error)
	// over is closed when the attempt is forgotten.
	over chan struct{}
	// poke wakes the follower: the bind was allowed once more, or a new round is
	// to be run.
	poke chan struct{}
	// plugin is the name of the one at work.
	plugin atomic.Pointer[string]

	// The rest is guarded by attempts.mu.

	phase phase
	round *round
	// told says that a call was told to go ahead: a bind may be on its way.
	told bool
	// since is when that was last, or when the attempt was prepared.
	since time.Time
	// expected is when a client should call again, at the latest.
	expected time.Time
	// failedAt and undone belong to the phase failed.
	failedAt time.Time
	undone   bool
	// ran are the plugins whose PreBind was started, each once, in order, with the
	// context of its last PreBind.
	ran []ran
}

// round is one pass through PreBind.
type round struct {
	// settings are those that it began with.
	settings *Settings
	bc       *framework.BindContext
	plugins  []framework.PreBinder
	// confirm takes the last look, when all PreBinds have succeeded.
	confirm func(ctx context.Context) *framework.Error
	// ctx ends when the round is given up; see attempts.giveUp.
	ctx     context.Context //nolint:containedctx // A round is an operation under way, and this is how it is ended.
	cancel  context.CancelCauseFunc
	givenUp bool // Guarded by attempts.mu.
	// done is closed when the pass is over; err may be read then.
	done chan struct{}
	err  *framework.Error
}

// ran is a plugin whose PreBind was started.
type ran struct {
	plugin framework.PreBinder
	bc     *framework.BindContext
}

func newRound(settings *Settings, bc *framework.BindContext, plugins []framework.PreBinder, confirm func(ctx context.Context) *framework.Error) *round {
	return &round{settings: settings, bc: bc, plugins: plugins, confirm: confirm, done: make(chan struct{})}
}

// close ends the round, once.
func (r *round) close(err *framework.Error) {
	select {
	case <-r.done:
	default:
		r.err = err
		close(r.done)
	}
}

func podOf(r *round) types.NamespacedName {
	return types.NamespacedName{Namespace: r.bc.Pod.Namespace, Name: r.bc.Pod.Name}
}

// keptUntil is how long the failure is kept. It must be called with attempts.mu held.
func (a *attempt) keptUntil() time.Time {
	if a.expected.After(a.failedAt) {
		return a.expected.Add(keepFailure)
	}
	return a.failedAt.Add(keepFailure)
}

// waiting is the answer to a call that could not wait for the end.
func (a *attempt) waiting(r *round, now time.Time) *framework.Error {
	w := r.bc.WaitingFor()
	if w.For == "" {
		w.For = "the plugin's work on this bind"
	}
	err := framework.Wait(w.Object, "waiting for %s (%s so far)", w.For, now.Sub(a.started).Round(time.Second)).
		Advise("repeat the Binding, as clients that honour Retry-After do by themselves")
	err.Plugin = a.pluginName()
	return err
}

// tooLong is the error of an attempt that has spent its budget.
func (a *attempt) tooLong(r *round) *framework.Error {
	w := r.bc.WaitingFor()
	message := "the bind took longer than its budget of %s"
	args := []any{a.budget}
	if w.For != "" {
		message, args = message+", waiting for %s", append(args, w.For)
	}
	err := framework.Refuse(w.Object, message, args...).Because(errBudgetSpent).
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
