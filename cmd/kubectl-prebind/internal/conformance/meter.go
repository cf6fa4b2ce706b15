// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// meterInterval is the time between two calls of a meter.
	meterInterval = 500 * time.Millisecond
	// slowCall is the time in which a call must end. Otherwise, it is slow.
	slowCall = time.Second
	// slowShare is the share of slow calls at which the cluster counts as overloaded.
	slowShare = 0.1
)

// meter makes calls, one after the other, and counts those that are slow. The zero value has made no call. It is safe for concurrent use.
type meter struct{ calls, slow atomic.Int64 }

// run makes calls until the context ends. A call that fails counts as slow.
func (m *meter) run(ctx context.Context, call func(ctx context.Context) error) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		calling, cancel := context.WithTimeout(ctx, slowCall)
		defer cancel()
		if err := call(calling); err != nil && ctx.Err() == nil {
			m.slow.Add(1)
		}
		m.calls.Add(1)
	}, meterInterval)
}

// watch returns a function that describes the overload of the cluster since the call of watch, or returns an empty string.
func (m *meter) watch() (overload func() string) {
	calls, slow := m.calls.Load(), m.slow.Load()
	return func() string {
		calls, slow := m.calls.Load()-calls, m.slow.Load()-slow
		if slow == 0 || float64(slow) < slowShare*float64(calls) {
			return ""
		}
		return fmt.Sprintf("the cluster is overloaded: %d of %d dry-run Bindings of this command failed or took more than %s", slow, calls, slowCall)
	}
}
