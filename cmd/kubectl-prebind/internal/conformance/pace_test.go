// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// event returns an event about the node, which was repeated after the time.
func event(reason, node string, at time.Time, again time.Duration) eventsv1.Event {
	e := eventsv1.Event{Reason: reason, EventTime: metav1.NewMicroTime(at), Related: &corev1.ObjectReference{Kind: "Node", Name: node}}
	if again > 0 {
		e.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: metav1.NewMicroTime(at.Add(again))}
	}
	return e
}

// TestMeter_Overload checks when a check has no result because of the cluster.
func TestMeter_Overload(t *testing.T) {
	const length = 20 * time.Second
	// after makes calls of the duration from the time on, and calls of 10 ms before.
	after := func(from, took time.Duration, err error) func(time.Duration) (time.Duration, error) {
		return func(now time.Duration) (time.Duration, error) {
			if now >= from {
				return took, err
			}
			return 10 * time.Millisecond, nil
		}
	}
	tests := map[string]struct {
		reason string
		call   func(now time.Duration) (time.Duration, error)
		want   string
	}{
		"Idle":       {reason: "the scheduler is slow, not the cluster", call: after(0, 10*time.Millisecond, nil)},
		"Busy":       {reason: "a call of less than a second does not explain a failure", call: after(0, 900*time.Millisecond, nil)},
		"Once":       {reason: "one slow call of 1.5 s does not explain a failure after 20 s", call: after(18*time.Second, 1500*time.Millisecond, nil)},
		"Overloaded": {reason: "every call is slow", call: after(0, 4*time.Second, nil), want: "the cluster is overloaded: for 20s of 20s, dry-run Bindings of this command failed or took more than 1s (the slowest 4s)"},
		"Stuck":      {reason: "a call in progress counts", call: after(10*time.Second, time.Hour, nil), want: "the cluster is overloaded: for 10s of 20s, dry-run Bindings of this command failed or took more than 1s (the slowest 10s)"},
		"Fails":      {reason: "a call that fails at once counts until the next one", call: after(10*time.Second, 0, errors.New("connection refused")), want: "the cluster is overloaded: for 10s of 20s, dry-run Bindings of this command failed or took more than 1s (the slowest 10ms)"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				m := &meter{call: func(ctx context.Context) error {
					took, err := tc.call(time.Since(began))
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(took):
						return err
					}
				}}
				ctx, cancel := context.WithCancel(t.Context())
				stop := m.start(ctx)
				<-time.After(length)
				got := m.overload(began, time.Now())
				cancel()
				stop()
				assert.Equal(t, tc.want, got, tc.reason)
				assert.Empty(t, m.overload(began.Add(-time.Hour), began), "an earlier check is not affected")
			})
		})
	}
}

func TestPace(t *testing.T) {
	now := time.Now()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	// after returns events about Bindings with these times between them.
	after := func(gaps ...int) []eventsv1.Event {
		all, at := []eventsv1.Event{event("BindRefused", "a", now, 0)}, now
		for _, gap := range gaps {
			at = at.Add(ms(gap))
			all = append(all, event("BindRefused", "a", at, 0))
		}
		return all
	}
	tests := map[string]struct {
		reason string
		events []eventsv1.Event
		// fastest and slowest are the durations of calls at the same time.
		fastest, slowest       time.Duration
		loops, constant, grows bool
	}{
		"SlowCluster": {reason: "a loop cannot be faster than its calls", fastest: ms(300), slowest: ms(350), loops: true, events: after(350)},
		"SlowBackoff": {reason: "backoff comes in addition to the call", fastest: ms(300), slowest: ms(350), grows: true, events: after(1300, 2300)},
		"Uneven":      {reason: "one of the slow calls, or backoff", fastest: ms(300), slowest: ms(2300), events: after(1300, 2300)},
		"Once":        {reason: "one refusal has no pace", fastest: ms(10), slowest: ms(10), events: after()},
		"Backoff":     {reason: "the scheduler waits 1 s and 2 s", fastest: ms(1010), slowest: ms(1100), events: after(2050, 3050), grows: true},
		"OneSlow":     {reason: "the scheduler may have been slow, too", fastest: ms(10), slowest: ms(1900), events: after(1050, 2400, 3600)},
		"Early":       {reason: "the next time can be longer", fastest: ms(1010), slowest: ms(1100), events: after(2050)},
		"EachSecond":  {reason: "backoff of 1 s never grows", fastest: ms(1010), slowest: ms(1100), events: after(2050, 2050, 2050, 2050, 2050), constant: true},
		"SlowSecond":  {reason: "the calls took longer, or backoff grows", fastest: ms(1010), slowest: ms(2000), events: after(2050, 2950, 2050, 2050, 2050)},
		"NoSeat": {
			reason: "the scheduler had to wait for a seat", fastest: ms(1010), slowest: ms(1100),
			events: append(after(2050, 4050), event("WaitingForPreBind", "a", now.Add(ms(3000)), 0)),
		},
		"SameNode": {
			reason: "the second refusal of the series follows immediately", fastest: ms(10), slowest: ms(10), loops: true,
			events: []eventsv1.Event{event("BindRefused", "a", now, ms(20))},
		},
		"OtherNode": {
			reason: "another node is also a repeated Binding", fastest: ms(10), slowest: ms(10), loops: true,
			events: []eventsv1.Event{event("BindRefused", "b", now.Add(ms(30)), 0), event("BindRefused", "a", now, 0)},
		},
		"OtherEvent": {
			reason: "only refusals count", fastest: ms(10), slowest: ms(10),
			events: []eventsv1.Event{event("BindRefused", "a", now, 0), event("WaitingForPreBind", "a", now, 0), event("FailedScheduling", "", now, 0)},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := &meter{calls: []measured{{began: now}, {began: now, ended: now.Add(time.Hour), failed: true}}}
			for range fewestCalls - 1 {
				m.calls = append(m.calls, measured{began: now, ended: now.Add(tc.fastest)})
			}
			p := paceOf(sightings(tc.events, "BindRefused"), sightings(tc.events, "WaitingForPreBind"), m)
			assert.False(t, p.loops() || p.constant() || p.waits(), "too few calls were measured")
			m.calls = append(m.calls, measured{began: now, ended: now.Add(tc.slowest)})
			p = paceOf(sightings(tc.events, "BindRefused"), sightings(tc.events, "WaitingForPreBind"), m)
			assert.Equal(t, tc.loops, p.loops(), tc.reason)
			assert.Equal(t, tc.constant, p.constant(), tc.reason)
			assert.Equal(t, tc.grows, p.grows(), tc.reason)
		})
	}
}

// TestPace_AtTheSameTime checks that a slow call does not matter at another time.
func TestPace_AtTheSameTime(t *testing.T) {
	now := time.Now()
	at := func(after, took time.Duration) measured {
		return measured{began: now.Add(after), ended: now.Add(after + took)}
	}
	m := &meter{calls: []measured{at(0, 3*time.Second), at(4*time.Second, 10*time.Millisecond), at(5*time.Second, 10*time.Millisecond), at(6*time.Second, 10*time.Millisecond), at(7*time.Second, 10*time.Millisecond)}}
	p := paceOf([]sighting{{at: now}, {at: now.Add(3500 * time.Millisecond)}, {at: now.Add(5 * time.Second)}, {at: now.Add(7 * time.Second)}}, nil, m)
	assert.True(t, p.grows())
	m.calls[4] = at(7*time.Second, 3*time.Second)
	p = paceOf([]sighting{{at: now.Add(8 * time.Second)}, {at: now.Add(9 * time.Second)}, {at: now.Add(10 * time.Second)}}, nil, m)
	assert.False(t, p.waits(), "the calls at the same time were slow")
}
