// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// meterInterval is the time between two calls of a meter.
	meterInterval = 500 * time.Millisecond
	// slowCall is the duration above which a call is slow.
	slowCall = time.Second
	// slowShare is the part of a check that slow calls must occupy, so that the cluster counts as overloaded.
	slowShare = 0.1
)

// meter adds up the time in which calls are slow. It makes one call after the other. The zero value has seen no call. It is safe for
// concurrent use.
type meter struct {
	mu sync.Mutex
	// began is when the call in progress began, or zero.
	began time.Time
	slow  time.Duration
}

// run makes calls until the context ends. A call that fails counts as slow until the next one.
func (m *meter) run(ctx context.Context, call func(ctx context.Context) error) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		m.mu.Lock()
		began := time.Now()
		m.began = began
		m.mu.Unlock()
		calling, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		err := call(calling)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.began = time.Time{}
		switch took := time.Since(began); {
		case took > slowCall:
			m.slow += took
		case err != nil && ctx.Err() == nil:
			m.slow += meterInterval
		}
	}, meterInterval)
}

// total returns the time in which calls were slow until now.
func (m *meter) total() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if took := time.Since(m.began); !m.began.IsZero() && took > slowCall {
		return m.slow + took
	}
	return m.slow
}

// watch returns a function that describes the overload of the cluster since the call of watch, or returns an empty string.
func (m *meter) watch() (overload func() string) {
	began, before := time.Now(), m.total()
	return func() string {
		slow, length := m.total()-before, time.Since(began)
		if slow == 0 || slow.Seconds() < slowShare*length.Seconds() {
			return ""
		}
		return fmt.Sprintf("the cluster is overloaded: for %s of %s, dry-run Bindings of this command failed or took more than %s", seconds(slow), seconds(length), slowCall)
	}
}
