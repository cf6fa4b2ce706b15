// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults injects faults into all components of a cluster while pods of all kinds are bound. A seed determines the
// schedule of the faults. Afterwards the package checks through the API that all objects are consistent and that Prebind has
// cleaned up.
package faults

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

var (
	seed   = flag.Uint64("seed", 1, "First seed.")
	seeds  = flag.Uint64("seeds", 1, "Number of seeds.")
	length = flag.Duration("length", 30*time.Second, "Duration of the faults of each seed.")
)

// settled is the timeout until a cluster is at rest. Prebind follows an attempt for 50 s. It keeps the marks of a lost
// replica for a minute after its lease has been expired for half a minute. A busy machine needs more time.
const settled = 6 * time.Minute

// TestFaults runs the faults of each seed.
func TestFaults(t *testing.T) {
	t.Parallel()
	binary, err := install.Build(t.Context(), install.BuildOptions{Dir: t.TempDir(), Race: true, Clock: true})
	require.NoError(t, err)
	for s := *seed; s < *seed+*seeds; s++ {
		t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
			t.Parallel() // Each seed mostly waits.
			survive(t, binary, s)
		})
	}
}

// survive runs the load during the faults of one seed, and then checks the cluster.
func survive(t *testing.T, binary string, seed uint64) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat this seed: make faults SEED=%d SEEDS=1 DURATION=%s ATTACK=%t", seed, *length, *attacked)
		}
	})
	w := newWorld(t, binary, replicas, cluster.Options{})
	if i, wrong := drawConstant(seed); wrong != 0 {
		t.Logf("during the whole test: %s (replica-%d) by %+.1fs", wrongClock, i, wrong.Seconds())
		w.replicas[i].wrong = wrong
		require.NoError(t, w.replicas[i].SetClock(wrong))
	}
	l := newLoad(w, seed)
	schedule := draw(seed, *length, 1)
	rest := w.endure(t, l, newAttack(t, w), seed, schedule)
	l.summary(t, len(schedule), rest)
}

// endure runs the load, and the attack unless it is nil, during the faults, and then checks the cluster. It returns how long the
// cluster needed until it was at rest. It may be called again.
func (w *world) endure(t *testing.T, l *load, a *attack, seed uint64, schedule []fault) time.Duration {
	t.Helper()
	for _, f := range schedule {
		t.Log(f)
	}
	g := newGuard(t, w, seed)
	l.begin(t.Context())
	if a != nil {
		a.begin(t, seed)
	}
	r := newRunner(t, w)
	r.run(t.Context(), schedule)
	l.end()
	r.heal(t)
	if a != nil {
		g.calmDown(t)
		pause(t.Context(), attackAlone)
		a.end(t)
	}
	assert.Empty(t, g.end(t), "the guard reports no broken promise")
	l.made["ordinary"] += g.made // All goroutines that write to it have ended.
	began := time.Now()
	left := w.untilClean(t, l, settled)
	rest := time.Since(began)
	assert.Empty(t, left, "the cluster is clean %s after all components have recovered", rest.Round(time.Second))
	assert.Empty(t, w.ledger.wrongs(), "the ledger reports no violation")
	assert.Empty(t, w.logs(), "no replica logs a data race, a panic or a fatal error")
	_, locked := w.ledger.locks.wrongs()
	t.Logf("the holder of the node lock is known for %d pods with the lock", locked)
	return rest
}
