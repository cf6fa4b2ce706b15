// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"time"

	"github.com/prebind/prebind/binder/recovery"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/binder/work"
)

// Recorder records the work on binds and its outcomes. Its methods are called concurrently,
// and must not block, because every bind waits for them.
type Recorder interface {
	runner.Tracker
	recovery.Observer
	work.Recorder
	// Begin is called when the decision on a Binding begins. It returns the context of the
	// decision, derived from ctx.
	Begin(ctx context.Context) context.Context
	// Decided is called with that context when the decision is made, and how long it took.
	Decided(ctx context.Context, r Request, d Decision, took time.Duration)
}

// unrecorded is a Recorder that ignores all calls.
type unrecorded struct{ runner.Untracked }

// Begin implements Recorder.
func (unrecorded) Begin(ctx context.Context) context.Context { return ctx }

// Decided implements Recorder.
func (unrecorded) Decided(context.Context, Request, Decision, time.Duration) {}

// AttemptEnded implements Recorder.
func (unrecorded) AttemptEnded(string) {}

// Swept implements recovery.Observer.
func (unrecorded) Swept(string, string, error) {}

// RolledBack implements Recorder.
func (unrecorded) RolledBack(string, error) {}
