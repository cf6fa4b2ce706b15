// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prebind/prebind/test/bench/stat"
)

// resultsDir is the directory for the samples: one file NAME.csv per benchmark.
var resultsDir = flag.String("results", "", "Directory for the samples, as CSV files. Without it, benchmarks print them.")

// results are the samples of one benchmark.
type results struct {
	name    string
	samples []stat.Sample
}

func (r *results) add(variant string, round int, metric string, value float64) {
	r.samples = append(r.samples, stat.Sample{Variant: variant, Round: round, Metric: metric, Value: value})
}

// save writes the samples to the directory, or to standard output if none is set.
func (r *results) save() error {
	if *resultsDir == "" {
		return stat.Write(os.Stdout, r.samples)
	}
	var out bytes.Buffer
	if err := stat.Write(&out, r.samples); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(*resultsDir, r.name+".csv"), out.Bytes(), 0o644)
}

// processor returns the CPU time of the process in seconds. The kernel counts it in nanoseconds for each thread. It
// omits threads that have ended, but the Go runtime keeps its threads.
func processor(pid int) (float64, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		return 0, errors.Join(fmt.Errorf("process %d has no CPU statistics", pid), err)
	}
	used := 0.0
	for _, thread := range threads {
		content, err := os.ReadFile(thread)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // The thread has just ended.
		}
		if err != nil {
			return 0, err
		}
		running, _, _ := strings.Cut(string(content), " ")
		nanoseconds, err := strconv.ParseFloat(running, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", thread, err)
		}
		used += nanoseconds / 1e9
	}
	return used, nil
}

// memory returns a value of /proc/PID/status, such as VmRSS, in bytes.
func memory(pid int, key string) (float64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }() // Read-only.
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), key+":"); ok {
			kilobytes, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 64)
			return kilobytes * 1024, err
		}
	}
	return 0, fmt.Errorf("the state of process %d has no %s", pid, key)
}

// calm waits until the processes are nearly idle, for at most ten seconds.
func calm(ctx context.Context, pids ...int) error {
	return calmWithin(ctx, 10*time.Second, 100*time.Millisecond, pids...)
}

// calmWithin is calm with another timeout and interval.
func calmWithin(ctx context.Context, patience, look time.Duration, pids ...int) error {
	const idle = 0.02
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	last := -1.0
	for {
		used := 0.0
		for _, pid := range pids {
			own, err := processor(pid)
			if err != nil {
				return err
			}
			used += own
		}
		if last >= 0 && used-last <= idle {
			return nil
		}
		last = used
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
