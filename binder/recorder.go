// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"time"

	"github.com/prebind/prebind/internal/work"
)

// Recorder records the work on binds and its outcomes.
type Recorder interface {
	work.Recorder
	// Begin is called when the decision on a Binding begins. It returns the context of the
	// decision, derived from ctx.
	Begin(ctx context.Context) context.Context
	// Decided is called with that context when the decision is made, and how long it took.
	Decided(ctx context.Context, r Request, d Decision, took time.Duration)
}
