// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seeds = flag.Int("seeds", 5, "Number of seeds.")
	first = flag.Uint64("seed", 1, "First seed.")
)

// TestSimulation runs the seeds. A failure prints the events of its seed, which -seed repeats with -seeds=1.
func TestSimulation(t *testing.T) {
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { run(t, seed) })
		})
	}
}

// run runs the storm and the calm of one seed.
func run(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	var stop, settle context.CancelFunc
	w.over, stop = context.WithCancel(t.Context())
	w.storming, settle = context.WithTimeout(w.over, storm)
	defer settle()
	for range 2 {
		w.start()
	}
	w.actors.Go(w.operate)
	for _, name := range nodes {
		w.actors.Go(func() { w.maintain(name) })
	}
	for i := range 6 {
		w.actors.Go(func() { w.owner(fmt.Sprintf("web-%d", i), i == 5) })
	}
	<-time.After(storm + calm)
	w.checkCalm()
	for _, p := range w.living() {
		p.end()
	}
	stop()
	w.actors.Wait()
	if len(w.problems) > 0 {
		t.Errorf("seed %d: %d violations, the first is: %s\n%s", seed, len(w.problems), w.problems[0], w.text())
	}
}

// operate kills replicas, cuts them from the API server's leases, and starts new ones.
func (w *world) operate() {
	d := w.random("operator")
	for w.pause(d.between(time.Second, 30*time.Second)) {
		w.checkRunning()
		living := w.living()
		if len(living) < 2 {
			w.start()
			continue
		}
		if !w.stormy() {
			for _, p := range living {
				p.cut.Store(false)
			}
			continue
		}
		switch p := living[d.below(len(living))]; d.below(6) {
		case 0:
			p.end()
		case 1:
			cut := !p.cut.Load()
			w.note("%s: the lease is cut: %v", p.id, cut)
			p.cut.Store(cut)
		case 2:
			if d.one(3) {
				w.actors.Go(func() { p.suspend(d.between(0, 3*time.Minute)) })
			}
		}
	}
}
