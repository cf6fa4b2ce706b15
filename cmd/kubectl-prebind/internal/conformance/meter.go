// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// meterInterval is the time between two calls of a meter.
	meterInterval = 500 * time.Millisecond
	// slowCall is the duration above which a call is slow.
	slowCall = time.Second
	// slowShare is the part of a check that slow calls must occupy, so that the cluster counts as overloaded.
	slowShare = 0.1
)

// meter measures the cluster with calls, one after the other. It is safe for concurrent use.
type meter struct {
	call func(ctx context.Context) error

	mu    sync.Mutex
	calls []measured
}

// measured is one call of a meter.
type measured struct {
	began time.Time
	// ended is zero while the call is in progress.
	ended  time.Time
	failed bool
}

// start makes calls until the context ends or the returned function is called.
func (m *meter) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(meterInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			m.measure(ctx)
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

func (m *meter) measure(ctx context.Context) {
	m.mu.Lock()
	m.calls = append(m.calls, measured{began: time.Now()})
	m.mu.Unlock()
	calling, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := m.call(calling)
	m.mu.Lock()
	defer m.mu.Unlock()
	last := &m.calls[len(m.calls)-1]
	last.ended, last.failed = time.Now(), err != nil && ctx.Err() == nil
}

// overload describes the overload of the cluster in the period, or returns an empty string. A call that fails counts as slow until the
// next one.
func (m *meter) overload(from, to time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	length := to.Sub(from)
	var slow, slowest time.Duration
	for i, c := range m.calls {
		if c.ended.IsZero() {
			c.ended = to
		}
		took := c.ended.Sub(c.began)
		if c.failed {
			c.ended = to
			if i+1 < len(m.calls) {
				c.ended = m.calls[i+1].began
			}
		}
		inside := min(c.ended.Sub(from), length) - max(c.began.Sub(from), 0)
		if inside <= 0 {
			continue
		}
		slowest = max(slowest, took)
		if c.failed || took > slowCall {
			slow += inside
		}
	}
	if slow == 0 || slow.Seconds() < slowShare*length.Seconds() {
		return ""
	}
	return fmt.Sprintf("the cluster is overloaded: for %s of %s, dry-run Bindings of this command failed or took more than %s (the slowest %s)",
		seconds(slow), seconds(length), slowCall, seconds(slowest))
}
