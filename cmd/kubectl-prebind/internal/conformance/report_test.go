// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// update writes the golden files instead of comparing them.
var update = flag.Bool("update", false, "write testdata")

// report has a check with each status.
func report() *Report {
	of := func(name, section string, took time.Duration, detail string, err error) Result {
		return resultOf(check{name: name, section: section}, took, detail, err, "")
	}
	fail := func(detail, advice string) error { return &outcome{status: Fail, detail: detail, advice: advice} }
	return &Report{Scheduler: "my-scheduler", Results: []Result{
		of("bind", "answers", 310*time.Millisecond, "bound to node-1 after 300ms", nil),
		of("wait", "answers", 95*time.Second, "", fmt.Errorf("late: %w", fail("pod wait was not bound\nwithin 1m0s", adviceRepeat))),
		of("uid", "set-the-uid", 0, "", skip("the check needs 2 nodes")),
		of("volume", "repeat-a-binding", 30*time.Second, "", errors.New("creating PersistentVolume x: <connection refused>")),
		resultOf(check{name: "burst", section: "time-limits"}, 2*time.Minute, "", fail("40 of 50 pods were bound", "Bind faster."), "the cluster is overloaded"),
		of("refused", "answers", 50*time.Second, "", &outcome{status: NoResult, detail: "the cluster is overloaded"}),
	}}
}

// TestReport_Golden compares the outputs with testdata.
func TestReport_Golden(t *testing.T) {
	for file, write := range map[string]func(*bytes.Buffer) error{
		"report.txt": func(out *bytes.Buffer) error { return report().WriteText(out) },
		"report.xml": func(out *bytes.Buffer) error { return report().WriteJUnit(out) },
	} {
		t.Run(file, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, write(&out))
			if *update {
				require.NoError(t, os.WriteFile(filepath.Join("testdata", file), out.Bytes(), 0o600))
			}
			want, err := os.ReadFile(filepath.Join("testdata", file))
			require.NoError(t, err)
			assert.Equal(t, string(want), out.String())
		})
	}
}

// TestReport_Any checks the statuses that decide the exit code.
func TestReport_Any(t *testing.T) {
	r := report()
	for _, s := range []Status{Pass, Fail, Skipped, Errored, NoResult} {
		assert.True(t, r.Any(s), s)
	}
	r.Results = r.Results[:1]
	assert.False(t, r.Any(Fail))
}
