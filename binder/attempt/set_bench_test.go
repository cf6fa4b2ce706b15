// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/test/gen"
)

// sizes are the numbers of attempts. The cost must not depend on them.
var sizes = []int{1_000, 10_000}

// waiter is a plugin that waits until its context ends.
type waiter struct{}

func (waiter) Name() string { return "waiter" }

func (waiter) PreBind(ctx context.Context, _ *framework.BindContext) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

type unobserved struct{}

func (unobserved) AttemptEnded(string) {}

func (unobserved) RolledBack(string, error) {}

// crowded returns a Set with that many waiting attempts.
func crowded(b *testing.B, attempts int) *Set {
	b.Helper()
	pods := fake.NewClientBuilder().Build()
	s := NewSet(Options{
		Runner:  &runner.Runner{Cached: pods, Live: pods, Tracker: runner.Untracked{}, Events: events.NewFakeRecorder(100)},
		Changes: framework.NewHub(), Observer: unobserved{}, Term: func() (int64, bool) { return 0, true },
		Clock: clock.RealClock{},
	})
	for i := range attempts {
		startOne(b.Context(), s, fmt.Sprintf("crowd-%d", i))
	}
	b.Cleanup(func() { _ = s.Stop(context.WithoutCancel(b.Context())) })
	return s
}

// startOne starts an attempt for a pod of that name and UID.
func startOne(ctx context.Context, s *Set, name string) *Attempt {
	node := gen.Node("node-a")
	bc := &framework.BindContext{Pod: gen.Pod(name, gen.UID(types.UID(name))), Node: node, Attempt: NewID("here")}
	r := NewRound(bc, []framework.PreBinder{waiter{}}, nil)
	return s.Start(ctx, Key{Pod: bc.Pod.UID, Node: node.Name}, r, 1<<62)
}

// BenchmarkStart starts and ends one attempt beside many others.
func BenchmarkStart(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("attempts=%d", size), func(b *testing.B) {
			s := crowded(b, size)
			for b.Loop() {
				a := startOne(b.Context(), s, "one-more")
				a.cancel(ErrStopped)
				a.round.cancel(ErrStopped)
				<-a.Over()
			}
		})
	}
}

// BenchmarkWorking measures Working, which the sweep calls for each mark.
func BenchmarkWorking(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("attempts=%d", size), func(b *testing.B) {
			s := crowded(b, size)
			for b.Loop() {
				s.Working("here-unknown")
			}
		})
	}
}
