// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package attempt is the lifecycle of one attempt at a bind: calls join it, it runs PreBind,
// allows the bind, follows it to its outcome, and rolls it back if the pod is not bound.
package attempt

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// KeepFailure is how long a failure is kept for the next call, after the time when that was
	// expected.
	KeepFailure = time.Minute
	// AbandonAfter is how long an attempt continues without a call, after the time when one was
	// expected.
	AbandonAfter = time.Minute
)

// Key identifies a bind. Two calls with one Key are the same bind. The UID of the request
// is not part of it: the API server gives each call, and each reinvocation, another one.
type Key struct {
	Pod  types.UID
	Node string
}

// IDSeparator separates the replica from the rest of an attempt's ID.
const IDSeparator = "-"

// NewID returns an ID that no other attempt for the same pod and node has. It begins with
// the replica; see ReplicaOf. All IDs of a replica have the same length.
func NewID(replica string) string { return replica + IDSeparator + rand.String(10) }

// ReplicaOf returns the replica that the attempt belongs to.
func ReplicaOf(id string) string {
	replica, _, _ := strings.Cut(id, IDSeparator)
	return replica
}

// Phase is the state of an attempt.
//
//	Preparing ─▶ Prepared ─▶ Over                   the pod is bound
//	    │  ▲        │  ╰──────▶ RollingBack ─▶ Over   it is not
//	    │  ╰────────╯ the scheduler posts the Binding again, and a plugin has work to do
//	    ╰▶ Failed ─▶ RollingBack ─▶ Over
type Phase int

const (
	// Preparing runs PreBind; calls wait for the end of the round.
	Preparing Phase = iota
	// Prepared has allowed the bind and follows it to its outcome.
	Prepared
	// Failed keeps an error that no call has received yet, while the rollback runs.
	Failed
	// RollingBack accepts no calls. They wait for its end and start another attempt.
	RollingBack
	// Over is no longer in the Set.
	Over
)

// Attempt is the work on one bind, from the first PreBind to the outcome. It outlives the
// calls that wait for it.
type Attempt struct {
	key Key
	// id marks the writes of plugins.
	id string
	// term is the replica's when the attempt began. In another term it allows no bind.
	term    int64
	started time.Time
	budget  time.Duration
	// cancel ends the attempt with the process; Round.cancel ends one round.
	cancel context.CancelCauseFunc
	// idle cancels a round without recent calls.
	idle clock.Timer
	// ended reports the end of the attempt to the tracker.
	ended func(err error)
	// over is closed when the attempt is removed from the Set.
	over chan struct{}
	// poke wakes the follower: the bind was allowed again, or there is another round.
	poke chan struct{}
	// plugin is the name of the one at work.
	plugin atomic.Pointer[string]

	// The rest is guarded by Set.mu.

	phase Phase
	round *Round
	// allowed is set once a call was allowed: the API server may bind the pod.
	allowed bool
	// since is the time of the last such call, or when the attempt was prepared.
	since time.Time
	// expected is when a client should call again, at the latest.
	expected time.Time
	// failedAt and rolledBack belong to the phase Failed.
	failedAt   time.Time
	rolledBack bool
	// ran are the plugins whose PreBind was started, each once, in order, with the
	// context of its last PreBind.
	ran []Started
}

// Started is a plugin whose PreBind was started, with the context of its last PreBind.
type Started struct {
	Plugin  framework.PreBinder
	Context *framework.BindContext
}

// ID returns the attempt's ID, which marks the writes of plugins.
func (a *Attempt) ID() string { return a.id }

// Over returns a channel that is closed when the attempt is removed from the Set.
func (a *Attempt) Over() <-chan struct{} { return a.over }

// keptUntil is how long the failure is kept. It must be called with Set.mu held.
func (a *Attempt) keptUntil() time.Time {
	if a.expected.After(a.failedAt) {
		return a.expected.Add(KeepFailure)
	}
	return a.failedAt.Add(KeepFailure)
}

// Waiting returns the answer to a call that could not wait for the end of the round.
func (a *Attempt) Waiting(r *Round, now time.Time) *framework.Error {
	w := r.Context.ReportedWait()
	if w.For == "" {
		w.For = "the plugin"
	}
	err := framework.Wait(w.Object, "waiting for %s (%s)", w.For, now.Sub(a.started).Round(time.Second)).
		Advise("retry the Binding")
	err.Plugin = a.pluginName()
	return err
}

// OverBudget returns the error of an attempt that has spent its budget. It wraps
// ErrBudgetSpent.
func (a *Attempt) OverBudget(r *Round) *framework.Error {
	w := r.Context.ReportedWait()
	message := "timed out after %s"
	args := []any{a.budget}
	if w.For != "" {
		message, args = message+" waiting for %s", append(args, w.For)
	}
	err := framework.Refuse(w.Object, message, args...).Because(ErrBudgetSpent).
		Advise("check the cause of the delay, or raise --prebind-timeout")
	err.Plugin = a.pluginName()
	return err
}

func (a *Attempt) pluginName() string {
	if name := a.plugin.Load(); name != nil {
		return *name
	}
	return framework.Binder
}
