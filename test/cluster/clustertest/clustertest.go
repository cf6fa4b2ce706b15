// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clustertest gives tests a control plane from package cluster. It is a
// package of its own so that programs that use package cluster need not contain
// package testing.
package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/prebind/prebind/test/cluster"
)

// Start starts a control plane for one test, or for a test and its subtests. It
// is stopped when the test is over; if the test has failed, the end of each
// component's log goes to the test's log. A component that ended by itself fails
// the test.
func Start(t testing.TB, o cluster.Options) *cluster.Cluster {
	t.Helper()
	if o.Out == nil {
		o.Out = t.Output()
	}
	c, err := cluster.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var logs bytes.Buffer
		c.DumpLogs(&logs)
		if err := c.Stop(); err != nil {
			t.Errorf("stop the cluster: %v", err)
		}
		if t.Failed() {
			t.Logf("the control plane's logs:\n%s", &logs)
		}
	})
	return c
}

// Kill kills a process at the end of a test. The test fails if the process ended by itself before. A failed test shows the end of its log.
func Kill(t testing.TB, p *cluster.Process) {
	t.Helper()
	if err := errors.Join(p.Err(), p.Kill()); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Logf("the end of the log of %s:\n%s", p.Name(), p.Tail(100))
	}
}

// RunMain starts one control plane for all tests of a package, lends it to use
// before they run, and returns the exit code for TestMain. An error of use is
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
// If tests fail, the end of each component's log goes to standard error.
func RunMain(m *testing.M, o cluster.Options, use func(*cluster.Cluster) error) int {
	if o.Out == nil {
		o.Out = os.Stderr
	}
	c, err := cluster.Start(context.Background(), o) //nolint:forbidigo // testing.M has no context
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := 1
	if err := use(c); err != nil {
		fmt.Fprintln(os.Stderr, "prepare the tests:", err)
	} else {
		code = m.Run()
	}
	if code != 0 {
		c.DumpLogs(os.Stderr)
	}
	if err := c.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the cluster:", err)
		code = max(code, 1)
	}
	return code
}
