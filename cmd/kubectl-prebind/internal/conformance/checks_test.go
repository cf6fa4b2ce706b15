// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readGuide returns the anchors of docs/for-schedulers.md.
func readGuide(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "for-schedulers.md"))
	require.NoError(t, err)
	var anchors []string
	for _, m := range regexp.MustCompile("(?m)^##+ (.*)$").FindAllStringSubmatch(string(page), -1) {
		anchor := strings.ToLower(strings.ReplaceAll(m[1], " ", "-"))
		anchors = append(anchors, strings.ReplaceAll(anchor, ",", ""))
	}
	return anchors
}

func TestOptions_Validate(t *testing.T) {
	tests := map[string]struct {
		change func(o *Options)
		err    string
	}{
		"Defaults":    {change: func(*Options) {}},
		"NoScheduler": {change: func(o *Options) { o.Scheduler = "" }, err: "--scheduler-name: required"},
		"NoWait":      {change: func(o *Options) { o.Wait = 0 }, err: "--wait: must be positive and at most 4m0s, got 0s"},
		"LongWait":    {change: func(o *Options) { o.Wait = time.Hour }, err: "--wait: must be positive and at most 4m0s, got 1h0m0s"},
		"NoTimeout":   {change: func(o *Options) { o.Timeout = -time.Second }, err: "--timeout: must be positive, got -1s"},
		"Burst":       {change: func(o *Options) { o.Burst = 0 }, err: "--burst: must be from 1 to 1000, got 0"},
		"Some":        {change: func(o *Options) { o.Run = regexp.MustCompile("^(wait|nothing)$") }},
		"NoCheck":     {change: func(o *Options) { o.Run = regexp.MustCompile("burts") }, err: `--run: no check matches "burts";`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := Options{Scheduler: "my-scheduler", Wait: time.Minute, Timeout: time.Minute, Burst: 10}
			tc.change(&o)
			err := o.Validate()
			if tc.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.err)
			}
		})
	}
}

// Every check refers to a section of the contract, and has a unique name. The advice for timeouts refers to a section, too.
func TestChecks(t *testing.T) {
	contract := readGuide(t)
	names := map[string]bool{}
	for i, c := range checks() {
		assert.False(t, names[c.name], c.name)
		names[c.name] = true
		assert.Contains(t, contract, c.section, c.name)
		assert.Contains(t, Describe(), "  "+c.name+" ", "the help shows each check")
		assert.Contains(t, Describe(), c.rule+"\n")
		assert.NotEmpty(t, c.rule)
		assert.Equal(t, i == 0, c.name == "bind", "bind is first, because it decides whether the others are made")
	}
	for _, advice := range []string{adviceRepeat, adviceStay} {
		_, anchor, ok := strings.Cut(advice, guide+"#")
		require.True(t, ok, advice)
		assert.Contains(t, contract, strings.TrimRight(anchor, ")."))
		assert.Contains(t, advice, "rest.Config.Timeout")
	}
}

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
	assert.True(t, report().Any(Fail))
	assert.False(t, report().Any("PASSED"))
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
