// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/bench/stat"
)

const reviews = `goos: linux
BenchmarkAdmission/webhook=nothing-2         	   10	     20000 ns/op	    6000 B/op	      80 allocs/op
BenchmarkAdmission/webhook=nothing-bare-2    	   10	     10000 ns/op	    5000 B/op	      70 allocs/op
BenchmarkAdmission/webhook=prebind           	   10	     30000 ns/op	    9000 B/op	     160 allocs/op
PASS
BenchmarkAdmission/webhook=nothing-2         	   10	     20000 ns/op	    6000 B/op	      80 allocs/op
BenchmarkAdmission/webhook=prebind           	   10	     20000 ns/op	    9000 B/op	     120 allocs/op
BenchmarkOther-2   	   10	     20000 ns/op
`

func TestAdmission(t *testing.T) {
	samples := admission(reviews)
	assert.Equal(t, []float64{1.5, 1}, stat.Ratios(samples, "ns/op", prebind, nothing), "the n-th values belong to the same round")
	assert.Equal(t, []float64{2, 1.5}, stat.Ratios(samples, "allocs/op", prebind, nothing))
	assert.Equal(t, []float64{10000}, stat.Values(samples, "ns/op", "nothing-bare"), "nothing-bare is another variant")
}

func TestResults(t *testing.T) {
	few := func(variant, metric string, values ...float64) []stat.Sample {
		var samples []stat.Sample
		for i, v := range values {
			samples = append(samples, stat.Sample{Variant: variant, Round: i, Metric: metric, Value: v})
		}
		return samples
	}
	cases := map[string]struct {
		reason string
		row    row
		sample []stat.Sample
		want   string
	}{
		"Met":      {reason: "the median meets the target", row: row{number: 1, what: "a", of: values("ms", prebind), most: new(2.0), unit: " ms"}, sample: few(prebind, "ms", 1, 2, 9), want: "1 | a | ≤ 2 ms | 2 ms | 1.50 to 5.50 | 3 | yes"},
		"Not":      {reason: "the median exceeds the target", row: row{number: 1, what: "a", of: values("ms", prebind), most: new(2.0)}, sample: few(prebind, "ms", 2.01), want: "1 | a | ≤ 2 | 2.01 | – | 1 | no"},
		"Least":    {reason: "a target can be a minimum", row: row{number: 2, what: "a", of: values("ms", prebind), least: new(0.9)}, sample: few(prebind, "ms", 0.8), want: "2 | a | ≥ 0.90 | 0.80 | – | 1 | no"},
		"NoTarget": {reason: "a row can have no target", row: row{number: 2, what: "a", of: values("ms", prebind)}, sample: few(prebind, "ms", 7), want: "2 | a | – | 7 | – | 1 | "},
		"Highest":  {reason: "a row can report its worst round", row: row{number: 7, what: "a", of: values("ms", prebind), by: highest, most: new(1.0)}, sample: few(prebind, "ms", 0, 0, 3), want: "7 | a | ≤ 1 | 3 | 0 to 1.50 | 3 | no"},
		"Growth":   {reason: "growth is the ratio of the last round to the first", row: row{number: 6, what: "a", of: growth("ms"), most: new(1.05)}, sample: few(prebind, "ms", 2, 9, 3), want: "6 | a | ≤ 1.05 | 1.50 | – | 1 | no"},
		"Less":     {reason: "a difference is calculated per round", row: row{number: 14, what: "a", of: difference("ms", prebind, none), most: new(1.0)}, sample: append(few(prebind, "ms", 5, 7), few(none, "ms", 4, 6)...), want: "14 | a | ≤ 1 | 1 | 1 to 1 | 2 | yes"},
		"Last":     {reason: "the last round has the largest cluster", row: row{number: 6, what: "a", of: last(values("ms", prebind))}, sample: few(prebind, "ms", 2, 9, 4), want: "6 | a | – | 4 | – | 1 | "},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			found, ok := tc.row.result(tc.sample)
			require.True(t, ok)
			assert.Equal(t, tc.want, strings.Join(found.fields(), " | "), tc.reason)
			_, ok = tc.row.result(nil)
			assert.False(t, ok, "a row without samples has no line")
		})
	}
}

// TestReadme checks that docs/performance shows the data next to it, and that every row has data.
func TestReadme(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "docs", "performance")
	data, err := read(filepath.Join(dir, "data"))
	require.NoError(t, err)
	results := resultsOf(data)
	assert.Len(t, results, len(table()), "every row has data")
	files, err := written(filepath.Join(dir, "README.md"), data, results)
	require.NoError(t, err)
	for path, want := range files {
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, string(want), string(kept), "%s: run 'make bench-keep'", path)
	}
}

func TestReplace(t *testing.T) {
	const begin, end = "<!-- a -->\n", "<!-- end of a -->\n"
	got, err := replace("before\n"+begin+"old\n"+end+"after\n", "a", "new\n")
	require.NoError(t, err)
	assert.Equal(t, "before\n"+begin+"new\n"+end+"after\n", got)
	for _, broken := range []string{"", begin, end, end + begin} {
		_, err := replace(broken, "a", "new\n")
		require.Error(t, err, "%q", broken)
	}
}
