// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
)

// Tracker follows the work on binds. Its methods are called concurrently, and must not
// block, because every bind waits for them.
type Tracker interface {
	// Step is called when a step begins. It returns the context of the step, derived from
	// ctx, and a function that is called once, with the step's error, when the step ends;
	// see Result.
	Step(ctx context.Context, s Step) (context.Context, func(err error))
	// ReadLive is called when an object of the kind is read from the API server, with
	// one of the reasons below. The plugin is empty if Prebind itself reads.
	ReadLive(plugin, kind, reason string)
	// HoldRefused is called when a call that had to wait is answered at once, because
	// MaxHolds calls are held already.
	HoldRefused()
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
	if err == nil {
		return "ok"
	}
	var own *framework.Error
	switch {
	case errors.As(err, &own) && own != nil && own.Kind != framework.KindInternal && own.Kind != "" && !errors.Is(err, context.Canceled):
		return string(own.Kind)
	case Ended(err) && !errors.Is(err, context.DeadlineExceeded):
		return "ended"
	default:
		return string(framework.KindInternal)
	}
}

// Untracked is a Tracker that ignores all calls.
type Untracked struct{}

// Step implements Tracker.
func (Untracked) Step(ctx context.Context, _ Step) (context.Context, func(error)) {
	return ctx, func(error) {}
}

// ReadLive implements Tracker.
func (Untracked) ReadLive(string, string, string) {}

// HoldRefused implements Tracker.
func (Untracked) HoldRefused() {}

// Cause is why work is given up from outside; it is the cause of a context's end. Two
// Causes with one text are the same error.
type Cause string

// Error implements error.
func (c Cause) Error() string { return string(c) }

// Ended returns whether a plugin stopped because its context ended, not for a reason of its
// own.
func Ended(err error) bool {
	var cause Cause
	return errors.As(err, &cause) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
