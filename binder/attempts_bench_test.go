// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// sizes are those of the benchmarks of cost against size: a cost must not grow with
// them.
var sizes = []int{1_000, 10_000}

// crowded returns an engine with that many attempts, all of which wait.
func crowded(b *testing.B, attempts int) *Engine {
	b.Helper()
	e := newTestEngine(b, func(o *Options) { o.Settings.Plugins = []framework.PreBinder{newWaiter()} })
	for i := range attempts {
		startOne(b.Context(), e, fmt.Sprintf("crowd-%d", i))
	}
	return e
}

// startOne starts an attempt for a pod of that name and UID.
func startOne(ctx context.Context, e *Engine, name string) *attempt {
	bc := &framework.BindContext{Pod: gen.Pod(name, gen.UID(types.UID(name))), Node: theNode, Attempt: e.newAttemptID()}
	settings := e.settings.Load()
	r := newRound(settings, bc, settings.Plugins, func(context.Context) *framework.Error { return nil })
	return e.attempts.start(ctx, attemptKey{pod: bc.Pod.UID, node: theNode.Name}, r, settings.PreBindTimeout)
}

// BenchmarkStart starts and ends one attempt beside many others.
func BenchmarkStart(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("attempts=%d", size), func(b *testing.B) {
			e := crowded(b, size)
			for b.Loop() {
				a := startOne(b.Context(), e, "one-more")
				a.cancel(errStopped)
				a.round.cancel(errStopped)
				<-a.over
			}
		})
	}
}

// BenchmarkWorking asks whether an attempt is in progress, as the sweep does for
// each mark.
func BenchmarkWorking(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("attempts=%d", size), func(b *testing.B) {
			e := crowded(b, size)
			for b.Loop() {
				e.attempts.working("here-unknown")
			}
		})
	}
}
