// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults injects faults into all components of a cluster while pods of all kinds are bound. A seed determines the
// schedule of the faults. Afterwards the package checks through the API that all objects are consistent and that Prebind has
// cleaned up.
package faults

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

var rare = flag.Bool("rare", false, "Run the tests of rare conditions: a minute without space for etcd, and two versions of the API server.")

// olderKubernetes is a version that test/kubernetes builds. The newer API server has that of test/controlplane.
const olderKubernetes = "1.36"

// TestRare runs the seed's load in rare conditions of the control plane.
func TestRare(t *testing.T) {
	if !*rare {
		t.Skip("it runs only with -rare")
	}
	binary, err := install.Build(t.Context(), install.BuildOptions{Dir: t.TempDir(), Race: true, Clock: true})
	require.NoError(t, err)
	aMinute := func(kind string) []fault {
		return []fault{{kind: kind, target: cluster.Etcd, at: 10 * time.Second, length: time.Minute}}
	}
	run := func(t *testing.T, o cluster.Options, disk string, schedule []fault) {
		w := newWorld(t, binary, replicas, o)
		w.disk = disk
		l := newLoad(w, *seed)
		rest := w.endure(t, l, newAttack(t, w), *seed, schedule)
		l.summary(t, len(schedule), rest)
	}
	t.Run("quota of etcd", func(t *testing.T) {
		run(t, cluster.Options{}, "", aMinute("quota of etcd"))
	})
	t.Run("disk of etcd", func(t *testing.T) {
		disk := t.TempDir()
		if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", disk).CombinedOutput(); err != nil {
			t.Skipf("it needs root on Linux, to mount a small disk for etcd: %v %s", err, out)
		}
		t.Cleanup(func() { assert.NoError(t, exec.Command("umount", disk).Run()) }) //nolint:noctx // The context of the test has ended.
		run(t, cluster.Options{ExtraArgs: map[string][]string{cluster.Etcd: {"--data-dir=" + filepath.Join(disk, "etcd")}}}, disk, aMinute("full disk of etcd"))
	})
	t.Run("two versions", func(t *testing.T) {
		schedule := draw(*seed, *length, 1)
		for i := range schedule {
			if f := &schedule[i]; f.target == cluster.APIServer && i%2 == 0 {
				f.target = cluster.OtherAPIServer
			}
		}
		run(t, cluster.Options{Beside: olderKubernetes}, "", schedule)
	})
}

// fill keeps the disk full until the returned function is called.
func fill(ctx context.Context, t *testing.T, disk string) func() {
	t.Helper()
	name := filepath.Join(disk, "filler")
	file, err := os.Create(name)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	var failed error
	go func() {
		defer close(over)
		for content := make([]byte, 64<<10); ctx.Err() == nil; {
			if _, err := file.Write(content); err != nil {
				failed = err
				pause(ctx, 10*time.Millisecond)
			}
		}
	}()
	return func() {
		stop()
		<-over
		assert.ErrorIs(t, failed, syscall.ENOSPC, "the disk was full")
		assert.NoError(t, file.Close())
		assert.NoError(t, os.Remove(name))
	}
}
