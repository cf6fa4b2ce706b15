// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/prebind/prebind/test/cluster"
)

// fault is something that is broken for a while.
type fault struct {
	kind string
	// target is what is broken; no two faults break the same at a time.
	target     string
	at, length time.Duration
}

// String implements fmt.Stringer.
func (f fault) String() string {
	return fmt.Sprintf("at %5.1fs for %4.1fs: %s (%s)", f.at.Seconds(), f.length.Seconds(), f.kind, f.target)
}

// kinds are what can be broken, in a fixed order, with their targets.
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
	{"conflict storm", []string{"objects"}},
}

// slack is left between two faults of the same target.
const slack = 3 * time.Second

// draw draws a schedule: each kind once, in any order, and then again.
func draw(seed uint64, length time.Duration) []fault {
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
		f := fault{kind: kind.name, target: kind.targets[rng.IntN(len(kind.targets))], at: at, length: time.Duration(500+rng.IntN(7500)) * time.Millisecond}
		if at+f.length > length {
			return faults
		}
		at += time.Duration(500+rng.IntN(2500)) * time.Millisecond
		if f.at < busy[f.target] {
			continue
		}
		busy[f.target] = f.at + f.length + slack
		faults = append(faults, f)
	}
}

// TestDraw: the same seed is the same schedule, and in a minute there is something
// of everything.
func TestDraw(t *testing.T) {
	drawn := draw(7, time.Minute)
	assert.Equal(t, drawn, draw(7, time.Minute))
	assert.NotEqual(t, draw(7, time.Minute), draw(8, time.Minute))
	seen := map[string]bool{}
	for s := range uint64(20) {
		busy := map[string]time.Duration{}
		for _, f := range draw(s, time.Minute) {
			assert.GreaterOrEqual(t, f.at, busy[f.target], "one at a time: %s", f)
			assert.LessOrEqual(t, f.at+f.length, time.Minute)
			busy[f.target] = f.at + f.length
			seen[f.kind+f.target] = true
		}
	}
	for _, kind := range kinds {
		for _, target := range kind.targets {
			assert.True(t, seen[kind.name+target], "%s of %s", kind.name, target)
		}
	}
}
