// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"flag"
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
	return &Report{Scheduler: "my-scheduler", Results: []Result{
		{Check: "bind", Status: Pass, Section: "answers", Duration: 310 * time.Millisecond, Detail: "bound to node-1 after 300ms"},
		{Check: "wait", Status: Fail, Section: "answers", Duration: 95 * time.Second, Detail: "pod wait was not bound within 1m0s", Advice: adviceRepeat},
		{Check: "uid", Status: Skipped, Section: "set-the-uid", Detail: "the check needs 2 nodes"},
		{Check: "volume", Status: Errored, Section: "repeat-a-binding", Duration: 30 * time.Second, Detail: "creating PersistentVolume x: <connection refused>"},
		{Check: "burst", Status: NoResult, Section: "time-limits", Duration: 2 * time.Minute, Detail: "the cluster is overloaded; FAIL: 40 of 50 pods were bound"},
		{Check: "refused", Status: NoResult, Section: "answers", Duration: 50 * time.Second, Detail: "the cluster is overloaded"},
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
