// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
)

// Recorder records what the engine does.
type Recorder interface {
	Observer
	Tracker
}

// unrecorded is the Recorder of an engine without one.
type unrecorded struct {
	unobserved
	untracked
}

// Tracker follows the work on binds. Its methods are called concurrently, and must
// not block: they are on the way of every bind.
type Tracker interface {
	// Begin is called when the decision on a Binding begins. It returns the context of the
	// decision, which is the argument with more values.
	Begin(ctx context.Context) context.Context
	// Decided is called with that context when the decision is made, and how long it took.
	Decided(ctx context.Context, r Request, d Decision, took time.Duration)
	// Step is called as a step begins, and returns the context for it, which is that
	// of the argument with more values, and what is to be called with its error, once,
	// when it ends; see Result.
	Step(ctx context.Context, s Step) (context.Context, func(err error))
	// ReadLive is called when an object of the kind is read from the API server, with
	// one of the reasons below. The plugin is empty where the engine reads for itself.
	ReadLive(plugin, kind, reason string)
	// HoldRefused is called when a call that had to wait is answered at once, because
	// as many are kept waiting as may be.
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
	// Attempt is empty as long as there is none.
	Attempt string
}

// The names of steps. They are stable.
const (
	StepPreFlight       = "PreFlight"
	StepPreBind         = "PreBind"
	StepConfirm         = "Confirm"
	StepPostBind        = "PostBind"
	StepPreBindRollBack = "PreBindRollBack"
	// StepMutators is a run of all mutators.
	StepMutators = "Mutators"
	// StepHold keeps a call waiting.
	StepHold = "Hold"
	// StepAttempt is an attempt from its beginning until it is forgotten. It outlives
	// the call that began it.
	StepAttempt = "Attempt"
)

// Why an object is read live. These are the values of a label of the metrics.
const (
	// ReadMissing: the cache does not have it.
	ReadMissing = "missing"
	// ReadDoubted: what the cache has would end the bind, and may be behind.
	ReadDoubted = "doubted"
	// ReadOutcome: to see whether a pod was bound, or before anything is undone.
	ReadOutcome = "outcome"
)

// Result names how a step ended: "ok", the kind of the error, or "ended" when it was
// given up from outside, which is not the plugin's doing.
func Result(err error) string {
	if err == nil {
		return "ok"
	}
	var own *framework.Error
	switch {
	case errors.As(err, &own) && own != nil && own.Kind != framework.KindInternal && own.Kind != "" && !errors.Is(err, context.Canceled):
		return string(own.Kind)
	case ended(err) && !errors.Is(err, context.DeadlineExceeded):
		return "ended"
	default:
		return string(framework.KindInternal)
	}
}

// stepOf is the step of a plugin for a bind.
func stepOf(name, plugin string, bc *framework.BindContext) Step {
	s := Step{Name: name, Plugin: plugin, Attempt: bc.Attempt}
	if bc.Pod != nil {
		s.Pod = types.NamespacedName{Namespace: bc.Pod.Namespace, Name: bc.Pod.Name}
	}
	if bc.Node != nil {
		s.Node = bc.Node.Name
	}
	return s
}

// untracked is the Tracker of an engine that nobody follows.
type untracked struct{}

// Begin implements Tracker.
func (untracked) Begin(ctx context.Context) context.Context { return ctx }

// Decided implements Tracker.
func (untracked) Decided(context.Context, Request, Decision, time.Duration) {}

// Step implements Tracker.
func (untracked) Step(ctx context.Context, _ Step) (context.Context, func(error)) {
	return ctx, func(error) {}
}

// ReadLive implements Tracker.
func (untracked) ReadLive(string, string, string) {}

// HoldRefused implements Tracker.
func (untracked) HoldRefused() {}
