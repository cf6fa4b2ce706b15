// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/prebind/prebind/test/cluster"
)

// fault is a temporary failure of one target.
type fault struct {
	kind string
	// target is the affected component. Faults of the same target do not overlap.
	target     string
	at, length time.Duration
	// wrong is the offset of a clock.
	wrong time.Duration
}

// String implements fmt.Stringer.
func (f fault) String() string {
	text := fmt.Sprintf("at %5.1fs for %4.1fs: %s (%s)", f.at.Seconds(), f.length.Seconds(), f.kind, f.target)
	if f.wrong != 0 {
		text += fmt.Sprintf(" by %+.1fs", f.wrong.Seconds())
	}
	return text
}

// kinds lists the kinds of faults with their targets, in a fixed order.
var kinds = []struct {
	name    string
	targets []string
}{
	{"kill", []string{"replica-0", "replica-1"}},
	{"kill", []string{"replica-0", "replica-1"}},
	{"kill", []string{cluster.APIServer}},
	{"kill", []string{cluster.Etcd}},
	{"kill", []string{cluster.ControllerManager}},
	{"kill", []string{cluster.Provisioner}},
	{"kill", []string{cluster.Scheduler}},
	{"freeze", []string{"replica-0", "replica-1"}},
	{"full disk", []string{"replica-0", "replica-1"}},
	{"cut to replica", []string{"replica-0", "replica-1"}},
	{"cut from replica", []string{"replica-0", "replica-1"}},
	{"slow API", []string{"replica-0", "replica-1"}},
	{"writes without answer", []string{"replica-0", "replica-1"}},
	{"watches end", []string{"replica-0", "replica-1"}},
	{"history lost", []string{cluster.APIServer}},
	{"quota of etcd", []string{cluster.Etcd}},
	{"conflict storm", []string{"objects"}},
	// A clock is a separate target, so that its fault can overlap with other faults of the replica.
	{wrongClock, []string{clockOf("replica-0"), clockOf("replica-1")}},
	{wrongClock, []string{clockOf("replica-0"), clockOf("replica-1")}},
}

const (
	wrongClock = "wrong clock"
	// A fault lasts from shortest to longest. A wrong clock lasts up to longestClock.
	shortest     = 500 * time.Millisecond
	longest      = 8 * time.Second
	longestClock = 20 * time.Second
	// beforeAll is the offset to a time before all certificates are valid. See cluster.Backdated.
	beforeAll = -3 * time.Hour
)

// clockOf returns the target for the clock of a replica.
func clockOf(replica string) string { return "clock of " + replica }

// drawWrong draws the offset of a clock, from one second up to most, on a logarithmic scale and in both directions.
func drawWrong(rng *rand.Rand, most time.Duration) time.Duration {
	size := time.Duration(math.Pow(most.Seconds(), rng.Float64()) * float64(time.Second)).Round(time.Millisecond)
	if rng.IntN(2) == 0 {
		return -size
	}
	return size
}

// drawConstant draws a replica and the constant offset of its clock. The offset is 0 for two seeds in three.
func drawConstant(seed uint64) (replica int, wrong time.Duration) {
	rng := rand.New(rand.NewPCG(seed, math.MaxUint64))
	if replica = rng.IntN(replicas); seed%3 == 0 {
		wrong = drawWrong(rng, 10*time.Minute)
	}
	return replica, wrong
}

// slack is the minimum time between two faults of the same target.
const slack = 3 * time.Second

// draw draws a schedule. It repeats all kinds of faults in random order. A fault starts every 0.5 to 3 s, multiplied by pace.
func draw(seed uint64, length time.Duration, pace int) []fault {
	rng := rand.New(rand.NewPCG(seed, 0))
	var faults []fault
	busy := map[string]time.Duration{}
	var order []int
	at := time.Second
	for {
		if len(order) == 0 {
			order = rng.Perm(len(kinds))
		}
		kind := kinds[order[0]]
		order = order[1:]
		f := fault{kind: kind.name, target: kind.targets[rng.IntN(len(kind.targets))], at: at, length: lasts(rng, longest)}
		if f.kind == wrongClock {
			f.length = max(min(lasts(rng, longestClock), length-at), shortest)
			if f.wrong = drawWrong(rng, time.Hour); rng.IntN(6) == 0 {
				f.wrong = beforeAll
			}
		}
		if at+f.length > length {
			return faults
		}
		at += time.Duration((500+rng.IntN(2500))*pace) * time.Millisecond
		if f.at < busy[f.target] {
			continue
		}
		busy[f.target] = f.at + f.length + slack
		faults = append(faults, f)
	}
}

// lasts draws the duration of a fault.
func lasts(rng *rand.Rand, most time.Duration) time.Duration {
	return shortest + time.Duration(rng.Int64N(int64((most-shortest)/time.Millisecond)))*time.Millisecond
}

// TestDraw checks that a seed determines the schedule, and that 20 schedules of one minute contain every kind of fault for every target.
func TestDraw(t *testing.T) {
	first, again := draw(7, time.Minute, 1), draw(7, time.Minute, 1)
	assert.Equal(t, first, again)
	seen := map[string]bool{}
	for s := range uint64(20) {
		busy := map[string]time.Duration{}
		for _, f := range draw(s, time.Minute, 1) {
			assert.GreaterOrEqual(t, f.at, busy[f.target], "one at a time: %s", f)
			assert.LessOrEqual(t, f.at+f.length, time.Minute)
			busy[f.target], seen[f.kind+f.target] = f.at+f.length, true
		}
	}
	for _, kind := range kinds {
		for _, target := range kind.targets {
			assert.True(t, seen[kind.name+target], "%s of %s", kind.name, target)
		}
	}
}
