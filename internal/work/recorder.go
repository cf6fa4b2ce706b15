// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
)

// Recorder records the work on binds. Its methods are called concurrently, and must not
// block, because binds wait for them.
type Recorder interface {
	// Step is called when a step begins. It returns the context of the step, derived from
	// ctx, and a function that is called once, with the step's error, when the step ends;
	// see Result.
	Step(ctx context.Context, s Step) (context.Context, func(err error))
	// ReadLive is called when the engine reads an object of the kind from the API server, with
	// one of the reasons below.
	ReadLive(kind, reason string)
	// HoldRefused is called when a call that had to wait is answered at once, because
	// MaxHolds calls are held already.
	HoldRefused()
	// AttemptEnded is called when the outcome of a bind is known that was allowed: Bound or NotBound.
	AttemptEnded(outcome string)
	// RolledBack is called when a rollback of a plugin has ended: err is why it failed, or nil.
	RolledBack(plugin string, err error)
	// Swept is called for each mark that a sweep settles: action is one of Actions, and err
	// why it must be retried, or nil.
	Swept(plugin, action string, err error)
}

// Step is a piece of work on one bind.
type Step struct {
	// Name is an extension point of a plugin, or one of the engine's own steps.
	Name string
	// Plugin is empty for the engine's own steps.
	Plugin string
	Pod    types.NamespacedName
	Node   string
	// Attempt is empty if there is none yet.
	Attempt string
}

// The names of steps. They are stable.
const (
	StepPreFlight       = "PreFlight"
	StepPreBind         = "PreBind"
	StepPostBind        = "PostBind"
	StepPreBindRollBack = "PreBindRollBack"
	// StepMutators is a run of all mutators.
	StepMutators = "Mutators"
	// StepHold keeps a call waiting.
	StepHold = "Hold"
)

// Reasons for a live read. These are the values of a label of the metrics.
const (
	// ReadMissing: the cache does not have it.
	ReadMissing = "missing"
	// ReadDoubted: the cached object would end the bind, and may be stale.
	ReadDoubted = "doubted"
	// ReadOutcome: to find out whether a pod was bound, or before a rollback.
	ReadOutcome = "outcome"
)

// Result returns how a step ended: "ok", the kind of the error, or "ended" if the step was
// given up for a reason outside the plugin.
func Result(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return "ended"
	default:
		return string(framework.AsError("", err).Kind)
	}
}
