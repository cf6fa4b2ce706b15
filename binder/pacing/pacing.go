// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pacing decides which waiting calls a replica holds, and when it asks the
// clients of the others to call again. All decisions are pure functions of what is
// passed in; simulation_test.go simulates them for crowds of pods.
//
// A held call is answered within milliseconds of its event. A call that is not held costs its
// client a round trip and up to the whole Retry-After of delay, because nothing can wake a
// sleeping client. So the package holds the calls that are closest to their event, and lets the
// others return shortly before theirs, as estimated from earlier waits.
package pacing

import (
	"math"
	"slices"
	"time"
)

const (
	// Retries is how often client-go repeats a request that is answered with 429 and a
	// Retry-After (maxRetries in client-go's rest.Request).
	Retries = 10
	// MaxGap is the longest Retry-After.
	MaxGap = 150 * time.Second
	// minGap is the shortest Retry-After. The header has whole seconds, and client-go ignores
	// zero.
	minGap = time.Second
	// lead is how long before its event a call should return.
	lead = 500 * time.Millisecond
	// crowdUnit is the number of waiting binds that may call again each second when
	// nothing is known about the end of their waits.
	crowdUnit = 40
	// lateness is the tolerated delay of a client.
	lateness = 1500 * time.Millisecond
	// maxCrowdGap is the longest gap because of a crowd.
	maxCrowdGap = 15 * time.Second
)

// Wait describes one wait, as far as the replica knows it.
type Wait struct {
	// Elapsed is the time since the wait began, as far as this replica knows.
	Elapsed time.Duration
	// Left is the rest of the budget of the bind.
	Left time.Duration
	// Calls is the number of calls for this bind so far, this one included: at least 1.
	// Those that other replicas answered are estimated; see Missed.
	Calls int
	// Past are the waits of the same kind that this replica has seen.
	Past Past
}

// Past are waits of one kind.
type Past struct {
	// Ended are the durations of recent waits that ended with their event, in ascending
	// order.
	Ended []time.Duration
	// Waiting is how long others of the kind have been waiting, in ascending order.
	Waiting []time.Duration
}

// Quantile returns the duration within which the fraction q of the waits end that last longer
// than elapsed. It is the Kaplan-Meier estimate: a wait in progress counts for its time so far,
// so that a crowd does not look fast because only its shortest waits have ended. It returns
// false if too few waits have ended.
func (p Past) Quantile(q float64, elapsed time.Duration) (time.Duration, bool) {
	ended, waiting := after(p.Ended, elapsed), after(p.Waiting, elapsed)
	left := 1.0
	for i, d := range ended {
		waiting = after(waiting, d-1)
		left *= 1 - 1/float64(len(ended)-i+len(waiting))
		if left <= 1-q {
			return d, true
		}
	}
	return 0, false
}

// after returns the part of the sorted durations that is longer than d.
func after(sorted []time.Duration, d time.Duration) []time.Duration {
	i, _ := slices.BinarySearch(sorted, d+1)
	return sorted[i:]
}

// Pace has the other inputs of RetryAfter.
type Pace struct {
	// Held is set if the call kept its seat to the end of its hold. The next call will
	// probably be held, too.
	Held bool
	// Hold is the maximum time that a call is held.
	Hold time.Duration
	// Crowd is the number of binds of the same namespace that wait in this replica.
	Crowd int
	// Jitter is a random number in [0, 1).
	Jitter float64
}

// RetryAfter returns when the client should call again, in whole seconds from 1 to
// MaxGap.
//
// It is one second for a call that was held to the end of its hold. For any other call it ends
// shortly before the expected event. Without an estimate it is half of the time that the wait
// has taken, and at least the time that the crowd of its namespace needs. It is longer if the
// client's remaining retries would not cover the budget.
func RetryAfter(w Wait, p Pace) time.Duration {
	gap := minGap
	if !p.Held {
		gap = unheld(w, p)
	}
	gap = max(gap, reach(w, p), minGap)
	return min(gap.Truncate(time.Second), MaxGap)
}

// Missed estimates how many calls for a bind other replicas have answered between two times
// since the wait began: as many as this replica would have answered in the same state, with
// or without a free seat. Without the estimate, a client whose calls reach several replicas
// would use up its retries before any of them expects it. Calls of w are those before that
// time.
func Missed(from, to time.Duration, w Wait, p Pace) int {
	missed := 0
	for t := from; to-t > lateness && missed < Retries; missed++ {
		at := Wait{Elapsed: t, Left: w.Left + w.Elapsed - t, Calls: w.Calls + missed + 1, Past: w.Past}
		if p.Held {
			at.Elapsed, at.Left = at.Elapsed+p.Hold, at.Left-p.Hold
			t += p.Hold
		}
		// The crowd was smaller then. In simulations, a higher estimate makes binds that wait less
		// than a minute sleep for two, and with a lower one more clients give up long waits.
		t += RetryAfter(at, Pace{Held: p.Held, Hold: p.Hold, Crowd: p.Crowd / 2, Jitter: 0.25})
	}
	return missed
}

// unheld returns the gap after a call that was not held.
func unheld(w Wait, p Pace) time.Duration {
	soonest, ok := w.Past.Quantile(0.2, w.Elapsed)
	if !ok {
		crowd := min(time.Duration(p.Crowd)*time.Second/crowdUnit, maxCrowdGap)
		return spread(max(w.Elapsed/2, crowd), p.Jitter)
	}
	gap := soonest - w.Elapsed - lead
	if latest, ok := w.Past.Quantile(0.9, w.Elapsed); ok {
		// The remaining retries must cover nearly all such waits.
		return max(gap, (latest-w.Elapsed)/time.Duration(max(Retries+2-2*w.Calls, 1)))
	}
	return max(gap, spread(w.Elapsed/2, p.Jitter))
}

// spread returns d, up to a quarter shorter or longer, so that clients do not return together.
func spread(d time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(d) * (0.75 + jitter/2))
}

// reach returns the shortest gap with which the remaining retries cover the budget, if the later
// ones are up to MaxGap apart.
func reach(w Wait, p Pace) time.Duration {
	calls, hold := w.Calls, time.Duration(0)
	if p.Held {
		hold = p.Hold
		// Other replicas may have held the bind before.
		calls = max(calls, 1+int(w.Elapsed/(p.Hold+minGap)))
	}
	retries := max(Retries+1-calls, 1)
	later := time.Duration(retries-1)*(MaxGap+hold) + hold
	gap := time.Duration(math.Ceil((w.Left - later).Seconds())) * time.Second
	return max(gap, 0)
}
