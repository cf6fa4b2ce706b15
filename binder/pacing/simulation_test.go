// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package pacing

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// simulation simulates binds, clients and replicas with the decisions of this package and its own
// clock. The API server sends each call to a random replica.
type simulation struct {
	pods, replicas, seats int
	// arrive is the time between the first calls of two pods.
	arrive time.Duration
	// wait returns how long a wait takes.
	wait func(r *rand.Rand) time.Duration
	hold time.Duration
	// warm are waits that the replicas remember at the start.
	warm Past
}

// simBind is one bind. Times are since the beginning of the simulation.
type simBind struct {
	began, event, bound time.Duration
	calls               int
	failed              bool
	// holder is the replica that holds its call, or nil. stay counts its seats.
	holder *simReplica
	stay   int
}

// simReplica is the state of one replica.
type simReplica struct {
	calls map[*simBind]int
	// missed estimates the calls that other replicas answered.
	missed map[*simBind]int
	// next is when the client should call again.
	next map[*simBind]time.Duration
	// waiting are the known binds, the oldest first.
	waiting []*simBind
	ended   []time.Duration
	held    []*simBind
	seats   []Occupant
}

type simEvent struct {
	at   time.Duration
	what simKind
	bind *simBind
	stay int
}

type simKind int

const (
	simCall simKind = iota
	simDone
	simHoldEnds
)

type simQueue []simEvent

func (q simQueue) Len() int           { return len(q) }
func (q simQueue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q simQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any) {
	e, _ := x.(simEvent)
	*q = append(*q, e)
}

func (q *simQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// simRun is a simulation in progress.
type simRun struct {
	simulation
	random *rand.Rand
	queue  simQueue
	now    time.Duration
	known  []*simReplica
}

func (s simulation) run() []*simBind {
	r := &simRun{simulation: s, random: rand.New(rand.NewPCG(1, 2))} //nolint:gosec // The seed is fixed.
	for range s.replicas {
		r.known = append(r.known, &simReplica{calls: map[*simBind]int{}, missed: map[*simBind]int{}, next: map[*simBind]time.Duration{}, ended: slices.Clone(s.warm.Ended)})
	}
	var binds []*simBind
	for i := range s.pods {
		b := &simBind{}
		binds = append(binds, b)
		r.at(time.Duration(i)*s.arrive, simCall, b)
	}
	for len(r.queue) > 0 {
		e, _ := heap.Pop(&r.queue).(simEvent)
		r.now = e.at
		switch {
		case e.what == simCall:
			r.call(e.bind)
		case e.what == simDone:
			r.done(e.bind)
		case e.bind.stay == e.stay && e.bind.holder != nil:
			from := e.bind.holder
			from.leave(e.bind)
			r.answer(from, e.bind, true)
		}
	}
	return binds
}

func (r *simRun) at(t time.Duration, what simKind, b *simBind) {
	heap.Push(&r.queue, simEvent{at: t, what: what, bind: b, stay: b.stay})
}

func (r *simRun) call(b *simBind) {
	if b.calls++; b.calls == 1 {
		b.began, b.event = r.now, r.now+r.wait(r.random)
		r.at(b.event, simDone, b)
	}
	if r.now >= b.event {
		b.bound = r.now
		return
	}
	to := r.known[r.random.IntN(len(r.known))]
	if r.now-b.began > 0 {
		w := Wait{Elapsed: r.now - b.began, Left: r.left(b), Calls: to.calls[b] + to.missed[b], Past: r.past(to)}
		from := time.Duration(0)
		if to.calls[b] > 0 {
			from = to.next[b] - b.began
		}
		to.missed[b] += Missed(from, r.now-b.began, w, Pace{Held: len(to.held) < r.seats, Hold: r.hold, Crowd: len(to.waiting)})
	}
	if to.calls[b]++; !slices.Contains(to.waiting, b) {
		to.waiting = append(to.waiting, b)
		slices.SortFunc(to.waiting, func(a, b *simBind) int { return int(a.began - b.began) })
	}
	epoch, elapsed := time.Unix(0, 0), r.now-b.began
	o := Occupant{Calls: to.calls[b] + to.missed[b]}
	if likely, ok := r.past(to).Quantile(0.5, elapsed); ok {
		o.Due = epoch.Add(b.began + likely)
	}
	leaves, ok := Displace(to.seats, o, r.seats, epoch.Add(r.now))
	if !ok {
		r.answer(to, b, false)
		return
	}
	if leaves >= 0 {
		out := to.held[leaves]
		to.leave(out)
		r.answer(to, out, false)
	}
	to.held, to.seats = append(to.held, b), append(to.seats, o)
	b.holder = to
	b.stay++
	r.at(r.now+r.hold, simHoldEnds, b)
}

func (r *simRun) past(of *simReplica) Past {
	p := Past{Ended: of.ended}
	for _, b := range slices.Backward(of.waiting) {
		p.Waiting = append(p.Waiting, r.now-b.began)
	}
	return p
}

func (r *simRun) answer(by *simReplica, b *simBind, held bool) {
	elapsed := r.now - b.began
	gap := RetryAfter(Wait{Elapsed: elapsed, Left: r.left(b), Calls: by.calls[b] + by.missed[b], Past: r.past(by)},
		Pace{Held: held, Hold: r.hold, Crowd: len(by.waiting), Jitter: r.random.Float64()})
	if b.calls > Retries {
		b.failed = true
		return
	}
	by.next[b] = r.now + gap
	r.at(r.now+gap+5*time.Millisecond, simCall, b)
}

// left returns the rest of the budget.
func (r *simRun) left(b *simBind) time.Duration { return 10*time.Minute - (r.now - b.began) }

func (r *simRun) done(b *simBind) {
	for _, k := range r.known {
		if i := slices.Index(k.waiting, b); i >= 0 {
			k.waiting = slices.Delete(k.waiting, i, i+1)
			k.ended = append(k.ended, r.now-b.began)
			k.ended = k.ended[max(0, len(k.ended)-remember):]
			slices.Sort(k.ended)
		}
	}
	if b.holder != nil {
		b.holder.leave(b)
		b.bound = r.now
	}
}

func (k *simReplica) leave(b *simBind) {
	i := slices.Index(k.held, b)
	k.held, k.seats = slices.Delete(k.held, i, i+1), slices.Delete(k.seats, i, i+1)
	b.holder = nil
}

// about returns a wait of this length, 0.1 s shorter or longer.
func about(d time.Duration) func(r *rand.Rand) time.Duration {
	return between(d-100*time.Millisecond, d+100*time.Millisecond)
}

func between(from, to time.Duration) func(r *rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration { return from + time.Duration(r.Int64N(int64(to-from))) }
}

// growing returns waits that grow from pod to pod, as those of a busy provisioner.
func growing(from, to time.Duration, n int) func(r *rand.Rand) time.Duration {
	i := 0
	return func(r *rand.Rand) time.Duration {
		i++
		return from + (to-from)*time.Duration(i)/time.Duration(n) + time.Duration(r.Int64N(int64(200*time.Millisecond)))
	}
}

// TestSimulation: the delays from event to bound, and the extra calls, stay within bounds. The
// bounds are those of the model; docs/performance has the measured ones.
func TestSimulation(t *testing.T) {
	forties := Past{}
	for i := range 30 {
		forties.Ended = append(forties.Ended, 40*time.Second+time.Duration(i-15)*6*time.Millisecond)
	}
	slower := Past{} // A replica remembers the last waits.
	for i := range remember {
		slower.Ended = append(slower.Ended, 43*time.Second+3*time.Second*time.Duration(i)/remember)
	}
	cases := map[string]struct {
		reason   string
		s        simulation
		p50, p90 time.Duration
		extra    int
		// failed is the number of binds whose clients may use up their retries.
		failed int
	}{
		"One": {
			reason: "a seat is free", s: simulation{pods: 1, wait: about(100 * time.Second)}, extra: 3,
		},
		"Thirty": {
			reason: "every call has a seat", s: simulation{pods: 30, wait: between(2*time.Second, 240*time.Second)}, extra: 150,
		},
		"CrowdKnown": {
			reason: "the events are expected from earlier waits",
			s:      simulation{pods: 1000, arrive: 10 * time.Millisecond, wait: about(40 * time.Second), warm: forties}, p90: time.Second, extra: 1600,
		},
		"BurstKnown": {
			reason: "200 events per second exceed 64 seats",
			s:      simulation{pods: 1000, arrive: 5 * time.Millisecond, wait: about(40 * time.Second), warm: forties}, p50: time.Second, p90: 2 * time.Second, extra: 2200,
		},
		"CrowdExempt": {
			reason: "every call has a seat, so no estimate is needed",
			s:      simulation{pods: 1000, arrive: 10 * time.Millisecond, wait: about(40 * time.Second), seats: 512}, p90: time.Second, extra: 1100,
		},
		"CrowdUnknown": {
			reason: "no wait is known until the first event",
			s:      simulation{pods: 1000, arrive: 20 * time.Millisecond, wait: about(40 * time.Second)}, p50: 3 * time.Second, p90: 15 * time.Second, extra: 4000,
		},
		"CrowdMixed": {
			reason: "the waits differ",
			s:      simulation{pods: 1000, arrive: 20 * time.Millisecond, wait: between(5*time.Second, 60*time.Second)}, p50: 7 * time.Second, p90: 20 * time.Second, extra: 4000,
		},
		"CrowdAsMeasured": {
			reason: "arrivals and waits of BenchmarkDelayOfACrowdWithSeats; docs/performance compares the results",
			s:      simulation{pods: 1000, arrive: 5600 * time.Microsecond, wait: growing(40*time.Second, 46*time.Second, 1000)}, p50: 6 * time.Second, p90: 20 * time.Second, extra: 5000,
		},
		"CrowdAsMeasuredKnown": {
			reason: "the same after another round",
			s: simulation{
				pods: 1000, arrive: 5600 * time.Microsecond, wait: growing(40*time.Second, 46*time.Second, 1000), warm: slower,
			}, p50: time.Second, p90: 3 * time.Second, extra: 2000,
		},
		"CrowdSlowerThanKnown": {
			reason: "a wait longer than all known ones has no estimate",
			s: simulation{
				pods: 1000, arrive: 5600 * time.Microsecond, wait: growing(40*time.Second, 49*time.Second, 1000), warm: slower,
			}, p50: time.Second, p90: 25 * time.Second, extra: 3000,
		},
		"CrowdOfLongWaits": {
			reason: "the calls of a bind reach both replicas, and its client has ten retries",
			s:      simulation{pods: 1000, arrive: 20 * time.Millisecond, wait: about(5 * time.Minute)}, p50: 2 * time.Minute, p90: 3 * time.Minute, extra: 11_000, failed: 3,
		},
		"CrowdOfShortWaits": {
			reason: "the waits end before most clients sleep long",
			s:      simulation{pods: 1000, arrive: 5 * time.Millisecond, wait: about(3 * time.Second)}, p50: 2 * time.Second, p90: 8 * time.Second, extra: 2000,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := tc.s
			s.replicas, s.seats, s.hold = 2, max(s.seats, 32), 28*time.Second
			var delays []time.Duration
			extra, failed := 0, 0
			for _, b := range s.run() {
				if b.failed {
					failed++
				} else {
					delays = append(delays, b.bound-b.event)
				}
				extra += b.calls - 1
			}
			slices.Sort(delays)
			p50, p90 := delays[len(delays)/2], delays[len(delays)*9/10]
			t.Logf("p50 %.2fs, p90 %.2fs, worst %.2fs, extra calls %d", p50.Seconds(), p90.Seconds(), delays[len(delays)-1].Seconds(), extra)
			assert.LessOrEqual(t, p50, tc.p50, tc.reason)
			assert.LessOrEqual(t, p90, tc.p90, tc.reason)
			assert.LessOrEqual(t, extra, tc.extra, tc.reason)
			assert.LessOrEqual(t, failed, tc.failed, "clients have used up their retries")
		})
	}
}
