// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

var soak = flag.Duration("soak", 0, "Duration of the long run, of which -length is the duration of the faults of each round.")

const (
	// The long run has a moderate load, and rests between faults.
	soakEvery, soakPace = 500 * time.Millisecond, 4
	// moreGoroutines is the permitted growth of the median under load, and moreResident that between two rounds.
	moreGoroutines, moreResident = 50, 64 << 20
)

// sample is what a replica holds at one time. The heap is that after a garbage collection.
type sample struct{ goroutines, heap, resident int64 }

// TestSoak runs one seed after another against the same three replicas, with two instances of kube-scheduler. No fault restarts the
// last replica, so that its memory can be compared with that at first.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("it runs only with -soak")
	}
	// Without the race detector, which never releases memory.
	binary, err := install.Build(t.Context(), install.BuildOptions{Dir: t.TempDir(), Clock: true})
	require.NoError(t, err)
	w := newWorld(t, binary, replicas+1, cluster.Options{SecondScheduler: true})
	ends, l, a := time.Now().Add(*soak), newLoad(w, *seed), newAttack(t, w)
	l.every = soakEvery
	ctx, stop := context.WithCancel(t.Context())
	sampled := make(chan []sample)
	go func() { sampled <- w.observe(ctx, t, time.Minute) }()
	var took, rest time.Duration
	faults, s := 0, *seed
	for ; time.Until(ends) > took; s++ {
		began, schedule := time.Now(), draw(s, *length, soakPace)
		rest = w.endure(t, l, a, s, schedule)
		took, faults = time.Since(began), faults+len(schedule)
		t.Logf("seed %d is over: %d faults, %d pods bound until now, failed: %t", s, faults, w.ledger.everBound(), t.Failed())
	}
	stop()
	steady(t, <-sampled)
	l.summary(t, faults, rest)
	t.Logf("seeds %d to %d, %s", *seed, s-1, *soak)
}

// observe logs a line about all replicas after each interval. It returns the samples of the last replica.
func (w *world) observe(ctx context.Context, t *testing.T, interval time.Duration) (samples []sample) {
	t.Helper()
	for pause(ctx, interval); ctx.Err() == nil; pause(ctx, interval) {
		line := []string{fmt.Sprintf("%s: %d pods bound", time.Now().UTC().Format(time.TimeOnly), w.ledger.everBound())}
		for i, r := range w.replicas {
			text, now, err := r.sample(ctx)
			if err != nil {
				text = "does not answer"
			} else if i == len(w.replicas)-1 {
				samples = append(samples, now)
			}
			line = append(line, fmt.Sprintf("replica-%d (%d): %s", i, r.PID(), text))
		}
		t.Log(strings.Join(line, " | "))
	}
	return samples
}

// sample reads the metrics and profiles of the replica. text describes them.
func (r *replica) sample(ctx context.Context) (text string, now sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	metrics, err := r.Metrics(ctx)
	if err != nil {
		return "", now, err
	}
	profiles, err := r.held(ctx)
	if err != nil {
		return "", now, err
	}
	sum := func(name, label string) int64 {
		value, _ := install.Sum(metrics, name, label)
		return int64(value)
	}
	const decisions, inUse = "prebind_decisions_total", "go_memstats_heap_inuse_bytes"
	now = sample{goroutines: total(profiles.goroutines), heap: total(profiles.heap), resident: sum("process_resident_memory_bytes", "")}
	return fmt.Sprintf("%d allowed, %d refused, %d waiting, %d holds, %d attempts, %d policies, %d tasks, %d goroutines, RSS %s, heap in use %s, %s after GC",
		sum(decisions, `"allowed"`), sum(decisions, `"refused"`), sum(decisions, `"waiting"`), sum("prebind_holds", ""), sum("prebind_attempts", ""),
		sum("prebind_policies", ""), sum("prebind_policy_tasks", ""), now.goroutines, mib(now.resident), mib(sum(inUse, "")), mib(now.heap)), now, nil
}

// steady compares the medians of the first and of the last sixth of the samples, and the least memory of their thirds, which is that between
// two rounds.
func steady(t *testing.T, samples []sample) {
	t.Helper()
	n := len(samples) / 6
	if !assert.Positive(t, n, "the run takes at least six minutes") {
		return
	}
	goroutines, heap, resident := func(s sample) int64 { return s.goroutines }, func(s sample) int64 { return s.heap }, func(s sample) int64 { return s.resident }
	for name, what := range map[string]struct {
		of   func(sample) int64
		part int
		rank float64
		more int64
	}{
		"median of goroutines":     {of: goroutines, part: n, rank: 0.5, more: moreGoroutines},
		"median of heap in bytes":  {of: heap, part: n, rank: 0.5, more: moreHeapAttacked},
		"least heap in bytes":      {of: heap, part: 2 * n, rank: 0, more: moreHeapAttacked},
		"least resident, in bytes": {of: resident, part: 2 * n, rank: 0, more: moreResident}, // Under load, it follows the garbage.
	} {
		of := func(part []sample) int64 {
			ranked := slices.SortedFunc(slices.Values(part), func(a, b sample) int { return cmp.Compare(what.of(a), what.of(b)) })
			return what.of(ranked[int(what.rank*float64(len(ranked)))])
		}
		first, last := of(samples[:what.part]), of(samples[len(samples)-what.part:])
		t.Logf("%s: %d at first, %d in the end", name, first, last)
		assert.LessOrEqual(t, last, first+what.more, "%s of a replica without restart", name)
	}
}
