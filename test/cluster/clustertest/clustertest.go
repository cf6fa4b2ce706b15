// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clustertest gives tests a control plane from package cluster. It is a
// package of its own so that programs that use package cluster need not contain
// package testing.
package clustertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"

	"github.com/prebind/prebind/test/cluster"
)

// KeepDirEnv names a variable that, when it is 1, leaves the folder of a failed
// test's cluster in place; the test then says where it is.
const KeepDirEnv = "PREBIND_KEEP_DIR"

// running contains the control planes of Start, so that an interrupted run can stop them and remove their folders.
var running struct {
	mu  sync.Mutex
	all map[*cluster.Cluster]func()
}

// track adds a control plane to running. The returned function removes it.
func track(c *cluster.Cluster, remove func()) (forget func()) {
	running.mu.Lock()
	defer running.mu.Unlock()
	if running.all == nil {
		running.all = map[*cluster.Cluster]func(){}
	}
	running.all[c] = remove
	return func() {
		running.mu.Lock()
		defer running.mu.Unlock()
		delete(running.all, c)
	}
}

// stopAll stops all control planes of Start.
func stopAll() {
	running.mu.Lock()
	defer running.mu.Unlock()
	var stopped sync.WaitGroup
	for c, remove := range running.all {
		stopped.Go(func() {
			_ = c.Stop() // Their tests have not ended either.
			remove()
		})
	}
	stopped.Wait()
}

// Start starts a control plane for one test, or for a test and its subtests. It
// is stopped when the test is over; if the test has failed, the end of each
// component's log goes to the test's log. A component that ended by itself fails
// the test.
func Start(t testing.TB, o cluster.Options) *cluster.Cluster {
	t.Helper()
	if o.Out == nil {
		o.Out = t.Output()
	}
	o, remove, err := withDir(o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(t.Context(), o)
	if err != nil {
		remove(true, t.Output())
		t.Fatal(err)
	}
	forget := track(c, func() { remove(true, os.Stderr) })
	t.Cleanup(func() {
		defer forget()
		var logs bytes.Buffer
		c.DumpLogs(&logs)
		if err := c.Stop(); err != nil {
			t.Errorf("stop the cluster: %v", err)
		}
		if t.Failed() {
			t.Logf("the control plane's logs:\n%s", &logs)
		}
		remove(t.Failed(), t.Output())
	})
	return c
}

// RunMain starts one control plane for all tests of a package, lends it to use
// while they run, and returns the exit code for TestMain. An error of use is
// printed, and no test runs:
//
//	var shared *cluster.Cluster
//
//	func TestMain(m *testing.M) {
//		os.Exit(clustertest.RunMain(m, cluster.Options{}, func(c *cluster.Cluster) error {
//			shared = c
//			return nil
//		}))
//	}
//
// On SIGINT and SIGTERM it stops this control plane and those of Start, and ends the process. If tests
// fail, the end of each component's log goes to standard error.
func RunMain(m *testing.M, o cluster.Options, use func(*cluster.Cluster) error) int {
	if o.Out == nil {
		o.Out = os.Stderr
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // testing.M has no context
	defer stop()
	o, remove, err := withDir(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c, err := cluster.Start(ctx, o)
	if err != nil {
		remove(true, os.Stderr)
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	done := make(chan int, 1)
	go func() {
		if err := use(c); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the tests:", err)
			done <- 1
			return
		}
		done <- m.Run()
	}()
	var code int
	select {
	case code = <-done:
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr, "interrupted: stopping the control planes")
		stopAll()
		code = 130
	}
	if code == 1 {
		c.DumpLogs(os.Stderr)
	}
	if err := c.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the cluster:", err)
		code = max(code, 1)
	}
	remove(code != 0, os.Stderr)
	return code
}

// withDir gives the cluster a folder that outlives it, so that it can be decided
// after the tests whether it stays.
func withDir(o cluster.Options) (cluster.Options, func(failed bool, out io.Writer), error) {
	if o.Dir != "" {
		return o, func(bool, io.Writer) {}, nil
	}
	dir, err := os.MkdirTemp("", "prebind-test-")
	if err != nil {
		return o, nil, fmt.Errorf("make a folder for the cluster: %w", err)
	}
	o.Dir = dir
	keep := o.KeepDir
	return o, func(failed bool, out io.Writer) {
		if keep || failed && os.Getenv(KeepDirEnv) == "1" {
			fmt.Fprintln(out, "the cluster's folder is kept:", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(out, "remove the cluster's folder:", err)
		}
	}, nil
}
