// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package unrecorded has a work.Recorder for tests that need none.
package unrecorded

import (
	"context"

	"github.com/prebind/prebind/internal/work"
)

// Recorder ignores all calls.
type Recorder struct{}

// Step implements work.Recorder.
func (Recorder) Step(ctx context.Context, _ work.Step) (context.Context, func(error)) {
	return ctx, func(error) {}
}

// ReadLive implements work.Recorder.
func (Recorder) ReadLive(string, string) {}

// HoldRefused implements work.Recorder.
func (Recorder) HoldRefused() {}

// AttemptEnded implements work.Recorder.
func (Recorder) AttemptEnded(string) {}

// RolledBack implements work.Recorder.
func (Recorder) RolledBack(string, error) {}

// Swept implements work.Recorder.
func (Recorder) Swept(string, string, error) {}
