// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
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

const (
	// minBackoff is the shortest pause before a Binding of a rejected pod that counts as backoff.
	minBackoff = 250 * time.Millisecond
	// longBackoff is the pause that one of the first manyPauses must reach. A scheduler that tries again once a second never does.
	longBackoff = 1500 * time.Millisecond
	manyPauses  = 5
	// fewestPauses is the number of pauses that show backoff, and fewestCalls the number of calls that show how long a Binding takes.
	fewestPauses = 2
	fewestCalls  = 5
)

// pause is the time before a Binding of a rejected pod: the time since the answer to the Binding before, without the duration of the
// call. It is between two limits, because only own calls show this duration: at least that of the fastest one, and at most that of the
// slowest one at the same time.
type pause struct{ least, most time.Duration }

// pace is how a scheduler posts the Bindings of a rejected pod.
type pace struct {
	refusals, calls int
	pauses          []pause
	// shortest and longest are the times between two answers, and fastest and slowest the durations of own calls.
	shortest, longest, fastest, slowest time.Duration
}

// paceOf returns the pace of the refused Bindings, by time. The time between two refusals does not count if the scheduler had to wait in
// between, because all holds were in use.
func paceOf(refusals, waits []sighting, m *meter) pace {
	p := pace{refusals: len(refusals)}
	p.calls, p.fastest, p.slowest = m.extremes(func(measured) bool { return true })
	for i := 1; i < len(refusals); i++ {
		from, to := refusals[i-1].at, refusals[i].at
		if slices.ContainsFunc(waits, func(w sighting) bool { return w.at.After(from) && w.at.Before(to) }) {
			continue
		}
		calls, _, slowest := m.extremes(func(c measured) bool { return c.ended.After(from) && c.began.Before(to) })
		if calls == 0 {
			slowest = p.slowest
		}
		gap := to.Sub(from)
		p.shortest, p.longest = widen(len(p.pauses), gap, p.shortest, p.longest)
		least := gap - slowest
		if slowest-p.fastest > slowCall {
			least = 0 // The scheduler, too, may have got no processor.
		}
		p.pauses = append(p.pauses, pause{least: least, most: gap - p.fastest})
	}
	return p
}

// extremes returns the number and the shortest and longest duration of the calls that have succeeded.
func (m *meter) extremes(selected func(c measured) bool) (n int, fastest, slowest time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.calls {
		if !c.failed && !c.ended.IsZero() && selected(c) {
			fastest, slowest = widen(n, c.ended.Sub(c.began), fastest, slowest)
			n++
		}
	}
	return n, fastest, slowest
}

// widen returns the extremes of the n durations before, and of another one.
func widen(n int, d, shortest, longest time.Duration) (time.Duration, time.Duration) {
	if n == 0 {
		return d, d
	}
	return min(shortest, d), max(longest, d)
}

// count returns the number of pauses for which the condition holds.
func (p pace) count(condition func(x pause) bool) int {
	n := 0
	for _, x := range p.pauses {
		if p.calls >= fewestCalls && condition(x) {
			n++
		}
	}
	return n
}

// loops returns whether a Binding followed too soon, even if its call was as fast as the fastest one.
func (p pace) loops() bool {
	return p.count(func(x pause) bool { return x.most < minBackoff }) > 0
}

// constant returns whether backoff does not grow, even if all calls were as fast as the fastest ones.
func (p pace) constant() bool {
	return len(p.pauses) >= manyPauses && p.count(func(x pause) bool { return x.most < longBackoff }) == len(p.pauses)
}

// waits returns whether the scheduler uses backoff, even if its calls were as slow as the slowest ones.
func (p pace) waits() bool {
	return p.count(func(x pause) bool { return x.least >= minBackoff }) >= fewestPauses
}

// grows returns whether it also uses backoff that grows.
func (p pace) grows() bool {
	return p.waits() && p.count(func(x pause) bool { return x.least >= longBackoff }) > 0
}

// String describes the pace.
func (p pace) String() string {
	times := fmt.Sprintf("%s to %s between two Bindings", seconds(p.shortest), seconds(p.longest))
	if p.grows() {
		return times
	}
	return fmt.Sprintf("%s prove neither backoff nor its absence, because calls took %s to %s; repeat the run when the cluster has less load",
		times, seconds(p.fastest), seconds(p.slowest))
}
