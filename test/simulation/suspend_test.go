// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// suspension is the state of a process on a machine that is suspended from time to time. Its wall clock runs in this time, and its monotonic clock
// stands.
type suspension struct {
	mu sync.Mutex
	// over is closed when the present suspension ends. It is nil if there is none.
	over chan struct{}
	// times are the suspensions so far.
	times []spell
	// renews is when the timer of the renewal of the lease ends after the last suspension.
	renews time.Time
}

// suspend suspends the process. Its goroutines have no effect before the end.
func (p *process) suspend(d time.Duration) {
	s := &p.suspension
	s.mu.Lock()
	if s.over != nil {
		s.mu.Unlock()
		return
	}
	s.over = make(chan struct{})
	s.times = append(s.times, spell{began: time.Now(), ended: time.Now().Add(d)})
	s.mu.Unlock()
	p.w.note("%s is suspended for %s", p.id, d)
	p.w.pause(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.over)
	s.over, s.renews = nil, time.Now().Add(p.dice.between(0, 10*time.Second))
	p.w.note("%s continues", p.id)
}

// renewsLater returns whether the process cannot send requests about leases.
func (p *process) renewsLater() bool {
	p.suspension.mu.Lock()
	defer p.suspension.mu.Unlock()
	return p.over != nil || time.Now().Before(p.renews)
}

// awake waits for the end of a suspension. It returns whether there was one.
func (p *process) awake() bool {
	p.suspension.mu.Lock()
	over := p.over
	p.suspension.mu.Unlock()
	if over == nil {
		return false
	}
	select {
	case <-over:
	case <-p.killed.Done():
	}
	return true
}

// suspendedLately returns whether the caches of the process can be older than latest because of a suspension.
func (p *process) suspendedLately() bool {
	p.suspension.mu.Lock()
	defer p.suspension.mu.Unlock()
	return len(p.times) > 0 && time.Since(p.times[len(p.times)-1].ended) < latest
}

// wasSuspended returns whether the process has been suspended at least once.
func (p *process) wasSuspended() bool {
	p.suspension.mu.Lock()
	defer p.suspension.mu.Unlock()
	return len(p.times) > 0
}

// monotonic returns the reading of the monotonic clock at the time. It stands in suspensions.
func (p *process) monotonic(t time.Time) time.Time {
	p.suspension.mu.Lock()
	defer p.suspension.mu.Unlock()
	var stood time.Duration
	for _, s := range p.times {
		if t.After(s.began) {
			stood += min(t.Sub(s.began), s.ended.Sub(s.began))
		}
	}
	return t.Add(-stood)
}

// suspendedClock is the clock of the process. In a bubble, a time.Time has no monotonic part. So its times are those of the monotonic clock,
// or those of the wall clock if the code that uses it looks at the wall clock.
type suspendedClock struct {
	clock.RealClock
	p    *process
	wall bool
}

// Now implements clock.PassiveClock.
func (c suspendedClock) Now() time.Time {
	if c.wall {
		return time.Now()
	}
	return c.p.monotonic(time.Now())
}

// Since implements clock.PassiveClock by the monotonic clock.
func (c suspendedClock) Since(t time.Time) time.Duration {
	if c.wall {
		t = c.p.monotonic(t)
	}
	return c.p.monotonic(time.Now()).Sub(t)
}

// suspendedTimer is a timer of the monotonic clock.
type suspendedTimer struct {
	*time.Timer
	c chan time.Time
	// ended is set when the function is called, or when the timer is stopped before.
	ended atomic.Bool
}

// C implements clock.Timer.
func (t *suspendedTimer) C() <-chan time.Time { return t.c }

// Stop implements clock.Timer.
func (t *suspendedTimer) Stop() bool {
	t.Timer.Stop()
	return t.ended.CompareAndSwap(false, true)
}

// Reset implements clock.Timer.
func (t *suspendedTimer) Reset(d time.Duration) bool {
	return !t.ended.Swap(false) && t.Timer.Reset(d)
}

// AfterFunc implements clock.WithDelayedExecution.
func (c suspendedClock) AfterFunc(d time.Duration, f func()) clock.Timer {
	return c.start(d, &suspendedTimer{}, f)
}

// NewTimer implements clock.Clock.
func (c suspendedClock) NewTimer(d time.Duration) clock.Timer {
	t := &suspendedTimer{c: make(chan time.Time, 1)}
	return c.start(d, t, func() { t.c <- time.Now() })
}

// start starts the timer.
func (c suspendedClock) start(d time.Duration, t *suspendedTimer, f func()) clock.Timer {
	began := c.Now()
	t.Timer = time.AfterFunc(d, func() {
		for left := time.Nanosecond; left > 0 && !c.p.dead(); left = d - c.Since(began) {
			c.p.awake()
			c.p.sleep(c.p.killed, d-c.Since(began))
		}
		if t.ended.CompareAndSwap(false, true) {
			f()
		}
	})
	return t
}
