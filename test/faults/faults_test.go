// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults breaks a whole cluster, by a schedule that is drawn from a seed,
// while pods of all kinds are bound, and then proves from the API that nothing was
// lost and nothing is left.
package faults

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/install"
)

var (
	seed    = flag.Uint64("seed", 1, "the first seed")
	seeds   = flag.Uint64("seeds", 1, "how many seeds, from the first one on")
	length  = flag.Duration("length", 30*time.Second, "how long there are faults")
	results = flag.String("results", "", "a CSV file to add a line for each seed to")
)

// settled is how long a cluster may take to come to rest: attempts are followed for
// 40 s, marks of replicas that are gone are left alone for a minute after half a
// minute without their lease, and a busy machine is slow.
const settled = 6 * time.Minute

func build(t *testing.T, replaced map[string][]byte) string {
	t.Helper()
	binary, err := install.Build(t.Context(), install.BuildOptions{Dir: t.TempDir(), Race: true, Clock: true, Replace: replaced})
	require.NoError(t, err)
	return binary
}

// TestFaults survives the seeds.
func TestFaults(t *testing.T) {
	binary := build(t, nil)
	for s := *seed; s < *seed+*seeds; s++ {
		t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
			t.Parallel() // Most of the time it waits.
			survive(t, binary, s)
		})
	}
}

// survive runs the load through the faults of one seed, and checks what is left.
func survive(t *testing.T, binary string, seed uint64) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat it: make faults SEED=%d SEEDS=1 DURATION=%s ATTACK=%t", seed, *length, *attacked)
		}
	})
	schedule := draw(seed, *length)
	for _, f := range schedule {
		t.Log(f)
	}
	w := newWorld(t, binary)
	if i, wrong := drawConstant(seed); wrong != 0 {
		t.Logf("from the beginning to the end: %s (replica-%d) by %+.1fs", wrongClock, i, wrong.Seconds())
		w.replicas[i].wrong = wrong
		require.NoError(t, w.replicas[i].SetClock(wrong))
	}
	var a *attack
	if *attacked {
		a = newAttack(t, w, seed)
	}
	g := newGuard(t, w, seed)
	l := newLoad(w, seed)
	l.begin(t.Context())
	if a != nil {
		a.begin(t.Context())
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
	assert.Empty(t, g.end(t), "what should hold at any time")
	l.made["ordinary"] = g.made // Nothing else runs any more.
	began := time.Now()
	left := w.untilClean(t, l, settled)
	rest := time.Since(began)
	assert.Empty(t, left, "what is left %s after everything was whole again", rest.Round(time.Second))
	assert.Empty(t, w.ledger.wrongs(), "what should never have been")
	assert.Empty(t, w.logs(), "what replicas should never say")
	_, locked := w.ledger.locks.wrongs()
	t.Logf("of %d pods that were bound with the lock of their node it is known whose it was", locked)
	row := l.summary(t, seed, len(schedule), rest)
	t.Log(row)
	if *results != "" && !t.Failed() {
		require.NoError(t, appendLine(*results, row))
	}
}

// columns are those of a seed's line.
const columns = "seed,faults,pods,bound,calls by hand,seconds until all was at rest," +
	"goroutines of replica 0 at first,in the end,MiB of heap in use at first,in the end,goroutines of replica 1 at first,in the end,MiB of heap in use at first,in the end"

func appendLine(name, line string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if info, statErr := f.Stat(); statErr == nil && info.Size() == 0 {
		line = columns + "\n" + line
	}
	_, err = fmt.Fprintln(f, line)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
