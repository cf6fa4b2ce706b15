// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package pacing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

const sec = time.Second

func TestDisplace(t *testing.T) {
	now := time.Unix(1000, 0)
	in := func(namespace string) Occupant { return Occupant{Namespace: namespace} }
	due := func(o Occupant, d time.Duration) Occupant { o.Due = now.Add(d); return o }
	cases := map[string]struct {
		reason string
		held   []Occupant
		new    Occupant
		leaves int
		ok     bool
	}{
		"Free": {
			reason: "a seat is free", held: []Occupant{in("a"), in("a")}, new: in("a"), leaves: -1, ok: true,
		},
		"SameNamespace": {
			reason: "the calls are equal, and a change costs a call", held: []Occupant{in("a"), in("a"), in("a")}, new: in("a"), leaves: -1,
		},
		"OtherNamespace": {
			reason: "a namespace without a seat gets one of the namespace with all", held: []Occupant{in("a"), in("a"), in("a")}, new: in("b"), leaves: 0, ok: true,
		},
		"FairAlready": {
			reason: "one more for b would be one less than b's for a", held: []Occupant{in("a"), in("a"), in("b")}, new: in("b"), leaves: -1,
		},
		"MostFirst": {
			reason: "the namespace with the most seats gives one up", held: []Occupant{in("a"), in("b"), in("b")}, new: in("c"), leaves: 1, ok: true,
		},
		"OneEach": {
			reason: "no namespace has a seat to spare", held: []Occupant{in("a"), in("b"), in("c")}, new: in("d"), leaves: -1,
		},
		"Near": {
			reason: "a near event has priority over an unknown one",
			held:   []Occupant{in("a"), in("a"), due(in("a"), sec)}, new: due(in("a"), 2*sec), leaves: 0, ok: true,
		},
		"Far": {
			reason: "a call with a far event can return later", held: []Occupant{in("a"), due(in("a"), 60*sec), in("a")}, new: in("a"), leaves: 1, ok: true,
		},
		"Nearer": {
			reason: "the nearer event has priority", held: []Occupant{due(in("a"), sec), due(in("a"), 4*sec), due(in("a"), 3*sec)}, new: due(in("a"), 2*sec), leaves: 1, ok: true,
		},
		"NotNearer": {
			reason: "the others are nearer", held: []Occupant{due(in("a"), sec), due(in("a"), 2*sec), due(in("a"), 3*sec)}, new: due(in("a"), 4*sec), leaves: -1,
		},
		"Overdue": {
			reason: "an overdue event is unknown",
			held:   []Occupant{due(in("a"), -sec), in("a"), due(in("a"), sec)}, new: due(in("a"), 2*sec), leaves: 0, ok: true,
		},
		"LastRetries": {
			reason: "a client with few retries has priority",
			held:   []Occupant{due(in("a"), sec), due(in("a"), 2*sec), in("a")}, new: Occupant{Namespace: "a", Calls: 8}, leaves: 2, ok: true,
		},
		"FairOverUrgent": {
			reason: "a crowd with near events does not keep out another namespace",
			held:   []Occupant{due(in("a"), sec), due(in("a"), 2*sec), due(in("a"), sec)}, new: in("b"), leaves: 1, ok: true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			leaves, ok := Displace(tc.held, tc.new, 3, now)
			assert.Equal(t, tc.ok, ok, tc.reason)
			assert.Equal(t, tc.leaves, leaves, tc.reason)
		})
	}
}

func TestRetryAfter(t *testing.T) {
	forties := Past{Ended: []time.Duration{40 * sec, 40 * sec, 40 * sec, 41 * sec}}
	mixed := Past{Ended: []time.Duration{2 * sec, 2 * sec, 60 * sec, 60 * sec}}
	cases := map[string]struct {
		reason string
		wait   Wait
		pace   Pace
		want   time.Duration
	}{
		"Held":        {reason: "the call was held, so the gap is short", wait: Wait{Elapsed: 28 * sec, Left: 572 * sec, Calls: 1}, pace: Pace{Held: true}, want: sec},
		"HeldByOther": {reason: "the other calls went to another replica", wait: Wait{Elapsed: 260 * sec, Left: 340 * sec, Calls: 1}, pace: Pace{Held: true}, want: 134 * sec},
		"HeldLong":    {reason: "two retries are left for 5.6 minutes", wait: Wait{Elapsed: 260 * sec, Left: 340 * sec, Calls: 9}, pace: Pace{Held: true}, want: 134 * sec},
		"LastCall":    {reason: "more calls than retries: another client, or none", wait: Wait{Elapsed: 500 * sec, Left: 100 * sec, Calls: 12}, pace: Pace{Held: true}, want: 72 * sec},
		"NeverMore":   {reason: "no gap is longer than MaxGap", wait: Wait{Elapsed: sec, Left: 2 * time.Hour, Calls: 10}, want: MaxGap},
		"First":       {reason: "no wait is known", wait: Wait{Left: 600 * sec, Calls: 1}, want: sec},
		"Unknown":     {reason: "half of the elapsed time", wait: Wait{Elapsed: 20 * sec, Left: 580 * sec, Calls: 3}, want: 10 * sec},
		"Crowd":       {reason: "400 waiting binds return at 40 per second", wait: Wait{Left: 600 * sec, Calls: 1}, pace: Pace{Crowd: 400}, want: 10 * sec},
		"LargeCrowd":  {reason: "the gap of a crowd is limited", wait: Wait{Left: 600 * sec, Calls: 1}, pace: Pace{Crowd: 100_000}, want: maxCrowdGap},
		"Known":       {reason: "the call returns before the event", wait: Wait{Elapsed: 10 * sec, Left: 590 * sec, Calls: 1, Past: forties}, want: 29 * sec},
		"KnownCrowd":  {reason: "known waits count more than the crowd", wait: Wait{Elapsed: 38 * sec, Left: 562 * sec, Calls: 1, Past: forties}, pace: Pace{Crowd: 1000}, want: sec},
		"SecondMode":  {reason: "shorter waits do not count", wait: Wait{Elapsed: 5 * sec, Left: 595 * sec, Calls: 2, Past: mixed}, want: 54 * sec},
		"Outlasted":   {reason: "the wait is longer than all known ones", wait: Wait{Elapsed: 80 * sec, Left: 520 * sec, Calls: 2, Past: forties}, want: 40 * sec},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.pace.Hold, tc.pace.Jitter = 28*sec, 0.5
			assert.Equal(t, tc.want, RetryAfter(tc.wait, tc.pace), tc.reason)
		})
	}
}

// TestRetryAfter_ReachesTheBudget: ten retries cover the budget, with and without holds.
func TestRetryAfter_ReachesTheBudget(t *testing.T) {
	for _, budget := range []time.Duration{time.Minute, 10 * time.Minute, 20 * time.Minute} {
		for _, hold := range []time.Duration{0, 5 * sec, 28 * sec} {
			elapsed, short := hold, 0
			for call := 1; call <= Retries; call++ {
				gap := RetryAfter(Wait{Elapsed: elapsed, Left: budget - elapsed, Calls: call}, Pace{Held: hold > 0, Hold: hold, Jitter: 0.5})
				if gap <= sec {
					short++
				}
				elapsed += gap + hold
			}
			assert.GreaterOrEqual(t, elapsed, budget-sec, "hold %s", hold)
			if hold == 28*sec && budget == 10*time.Minute {
				assert.GreaterOrEqual(t, short, 8, "waits of up to four minutes have gaps of a second")
			}
		}
	}
}

func TestMissed(t *testing.T) {
	forties := Past{Ended: []time.Duration{40 * sec, 40 * sec, 40 * sec, 41 * sec}}
	cases := map[string]struct {
		reason   string
		from, to time.Duration
		calls    int
		past     Past
		pace     Pace
		want     int
	}{
		"None":    {reason: "the client called on time", from: 29 * sec, to: 29*sec + 20*time.Millisecond, calls: 1},
		"Late":    {reason: "a slow client does not imply another call", from: 29 * sec, to: 30 * sec, calls: 1},
		"Held":    {reason: "another replica has held the first two calls", to: 58 * sec, pace: Pace{Held: true}, want: 2},
		"Between": {reason: "another replica has held the expected call", from: 29 * sec, to: 58 * sec, calls: 1, pace: Pace{Held: true}, want: 1},
		"Known":   {reason: "another replica expects the event at the same time", to: 39 * sec, past: forties, want: 1},
		"Unheld":  {reason: "the other replica had no seat, so gaps grow from ten seconds", to: 40 * sec, pace: Pace{Crowd: 1000}, want: 4},
		"Always":  {reason: "a client has ten retries", to: time.Hour, want: Retries},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.pace.Hold = 28 * sec
			w := Wait{Elapsed: tc.to, Left: 10*time.Minute - tc.to, Calls: tc.calls, Past: tc.past}
			assert.Equal(t, tc.want, Missed(tc.from, tc.to, w, tc.pace), tc.reason)
		})
	}
}

func TestPast_Quantile(t *testing.T) {
	cases := map[string]struct {
		reason  string
		past    Past
		elapsed time.Duration
		want    time.Duration
		ok      bool
	}{
		"Nothing":   {reason: "no wait is known"},
		"Median":    {reason: "half of the waits had ended", past: Past{Ended: []time.Duration{1 * sec, 2 * sec, 3 * sec, 4 * sec}}, want: 2 * sec, ok: true},
		"Rest":      {reason: "only longer waits count", past: Past{Ended: []time.Duration{1 * sec, 2 * sec, 3 * sec, 4 * sec}}, elapsed: 2 * sec, want: 3 * sec, ok: true},
		"Longer":    {reason: "no wait took as long", past: Past{Ended: []time.Duration{sec}}, elapsed: sec},
		"Survivors": {reason: "only the shortest of many have ended so far", past: Past{Ended: []time.Duration{sec}, Waiting: []time.Duration{2 * sec, 2 * sec, 2 * sec}}},
		"TooEarly":  {reason: "shorter waits in progress do not count", past: Past{Ended: []time.Duration{5 * sec}, Waiting: []time.Duration{2 * sec, 3 * sec, 4 * sec}}, want: 5 * sec, ok: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok := tc.past.Quantile(0.5, tc.elapsed)
			assert.Equal(t, tc.ok, ok, tc.reason)
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}

func TestHistory(t *testing.T) {
	h, now := NewHistory(), time.Unix(0, 0)
	a, b := Kind{Namespace: "a", Plugins: "p"}, Kind{Namespace: "b", Plugins: "p"}
	first, second := h.Begin(a, now), h.Begin(a, now.Add(sec))
	assert.Equal(t, []time.Duration{9 * sec, 10 * sec}, h.Past(a, now.Add(10*sec)).Waiting, "in ascending order")
	h.End(first, now.Add(10*sec), true)
	h.End(second, now.Add(10*sec), false)
	assert.Equal(t, []time.Duration{10 * sec}, h.Past(a, now).Ended, "a canceled wait does not count")
	assert.Equal(t, Past{}, h.Past(b, now), "waits of another namespace do not count")
	h.End(h.Begin(a, now), now.Add(sec/2), true)
	assert.Len(t, h.Past(a, now).Ended, 1, "waits below one second do not count")
	for range 3 * remember {
		h.End(h.Begin(a, now), now.Add(20*sec), true)
	}
	past := h.Past(a, now)
	assert.Len(t, past.Ended, remember)
	assert.Equal(t, 20*sec, past.Ended[0], "old waits are dropped")
}

// TestHistory_Bounded: many namespaces do not increase the memory.
func TestHistory_Bounded(t *testing.T) {
	h, now := NewHistory(), time.Unix(0, 0)
	kept := h.Begin(Kind{Namespace: "kept"}, now)
	for i := range 5 * kinds {
		h.End(h.Begin(Kind{Namespace: string(rune('a' + i%26)), Plugins: time.Duration(i).String()}, now), now.Add(2*sec), true)
	}
	assert.LessOrEqual(t, len(h.of), kinds)
	assert.Len(t, h.used, len(h.of))
	assert.Len(t, h.Past(kept.kind, now).Waiting, 1, "waits in progress are kept")
	h.End(kept, now.Add(2*sec), true)
}
