// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"flag"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seeds = flag.Int("seeds", 5, "Number of seeds.")
	first = flag.Uint64("seed", 1, "First seed.")
)

// TestSimulation runs the seeds. A failure prints the events of its seed; see the package for how to repeat it.
func TestSimulation(t *testing.T) {
	// Most objects live for a moment. The seeds run after this function has returned.
	percent := debug.SetGCPercent(1600)
	t.Cleanup(func() { debug.SetGCPercent(percent) })
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
	w.actors.Go(w.lead)
	w.actors.Go(w.changePolicy)
	if w.stepping {
		w.actors.Go(w.changeSteps)
		w.actors.Go(w.meddle)
	}
	for _, name := range nodes {
		w.actors.Go(func() { w.maintain(name) })
	}
	owned := 0
	if w.random("directed").one(directedRuns) {
		w.actors.Go(w.direct)
		owned = 1 // web-0 is directed.
	}
	for i := owned; i < 6; i++ {
		w.actors.Go(func() { w.owner(fmt.Sprintf("web-%d", i), i == 5) })
	}
	<-time.After(storm)
	var wrong []string
	for over := time.Now().Add(calm); time.Now().Before(over); {
		<-time.After(time.Minute)
		synctest.Wait()
		if wrong = w.checkCalm(); len(wrong) == 0 {
			break
		}
	}
	for _, text := range wrong {
		w.problem("%s", text)
	}
	w.checkRunning()
	<-time.After(5 * time.Minute) // Replicas may still clear announcements.
	living := w.living()
	for _, p := range living {
		p.end()
	}
	stop()
	w.actors.Wait()
	for _, p := range living {
		w.checkMemory(p)
	}
	if testing.Verbose() {
		t.Log(w.text())
	}
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
		if !w.stormy() || w.follower.Load() != nil {
			continue
		}
		switch p := living[d.below(len(living))]; d.below(6) {
		case 0:
			if w.deadly || d.one(5) {
				p.end()
			}
		case 1, 2:
			// Another replica can roll back what this one has written.
			if !slices.ContainsFunc(living, func(p *process) bool { return p.cut.Load() }) {
				w.actors.Go(func() { p.cutLease(d.between(0, 4*time.Minute)) })
			}
		case 3:
			w.replaceShared()
		}
	}
}

// lead makes one replica after the other the leader. An old leader continues for a while, because it discovers late that it has lost the
// lease. A replica that cannot renew its lease cannot lead.
func (w *world) lead() {
	d := w.random("leader")
	for w.over.Err() == nil {
		living := slices.DeleteFunc(w.living(), func(p *process) bool { return p.isCut() || p == w.follower.Load() })
		if len(living) == 0 {
			w.pause(time.Second)
			continue
		}
		p, end := living[d.below(len(living))], time.Now().Add(d.between(time.Minute, 5*time.Minute))
		w.note("%s leads", p.id)
		p.leadsUntil.Store(math.MaxInt64)
		for (time.Now().Before(end) || w.follower.Load() != nil) && !p.isCut() && !p.dead() && w.over.Err() == nil {
			p.sleep(w.over, time.Second)
		}
		p.leadsUntil.Store(time.Now().Add(d.between(0, 15*time.Second)).UnixNano())
	}
}
