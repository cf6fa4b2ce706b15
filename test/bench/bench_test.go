// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
)

// batch is how many claims are under way at a time: as many as keep two
// processors from being what is measured.
const batch = 10

// BenchmarkClaimBoundToPodBound measures the time from a claim bound to its pod
// bound, for claims whose volumes take one to two seconds to make. Both moments
// are those at which a client's watch shows them. It runs batches of ten claims;
// say how many by -benchtime, such as 5x.
func BenchmarkClaimBoundToPodBound(b *testing.B) {
	w := newWorld(b, cluster.Options{})
	took := make([][]time.Duration, len(ways))
	for i, way := range ways {
		b.Run(way.name, func(b *testing.B) {
			for b.Loop() {
				batch, err := w.measure(b.Context(), way.scheduler, batch)
				if err != nil {
					b.Fatal(err)
				}
				took[i] = append(took[i], batch...)
			}
			b.ReportMetric(0, "ns/op") // Mostly the volumes in the making.
			b.ReportMetric(milliseconds(quantile(took[i], 0.5)), "ms/median")
			b.ReportMetric(milliseconds(quantile(took[i], 0.9)), "ms/p90")
			if i > 0 && len(took[0]) > 0 {
				b.ReportMetric(ratio(took[0], took[i]), "times-faster")
			}
		})
	}
	b.Logf("from claim bound to pod bound\n\n%s", table(took))
	out := &results{name: "claims"}
	for i, way := range ways {
		for n, d := range took[i] {
			out.add(way.name, n, "ms", milliseconds(d))
		}
	}
	require.NoError(b, out.save())
}

// TestMeasure runs the benchmark once with a few claims, so that it works when it
// is needed. What it takes is not judged.
func TestMeasure(t *testing.T) {
	w := newWorld(t, cluster.Options{})
	for _, way := range ways {
		took, err := w.measure(t.Context(), way.scheduler, 2)
		require.NoError(t, err)
		assert.Len(t, took, 2)
		t.Logf("%s: %v", way.name, took)
	}
}

func TestQuantile(t *testing.T) {
	tests := map[string]struct {
		reason string
		values []time.Duration
		q      float64
		want   time.Duration
	}{
		"none":           {reason: "a benchmark that was left out has no results", q: 0.5},
		"one":            {reason: "it is every quantile", values: []time.Duration{7}, q: 0.9, want: 7},
		"median, odd":    {reason: "the one in the middle, in whatever order they came", values: []time.Duration{9, 1, 5}, q: 0.5, want: 5},
		"median, even":   {reason: "between the two in the middle", values: []time.Duration{1, 3, 5, 9}, q: 0.5, want: 4},
		"nine of ten":    {reason: "between its neighbours, as spreadsheets have it", values: []time.Duration{0, 100}, q: 0.9, want: 90},
		"the very worst": {reason: "there is nothing beyond", values: []time.Duration{1, 2, 3}, q: 1, want: 3},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, quantile(tc.values, tc.q), tc.reason)
		})
	}
}

// quantile interpolates between the neighbours; it is 0 for no values.
func quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + time.Duration((at-float64(low))*float64(sorted[high]-sorted[low]))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ratio is how many times faster the second is, by the medians.
func ratio(first, second []time.Duration) float64 {
	return float64(quantile(first, 0.5)) / float64(max(quantile(second, 0.5), 1))
}

// table is the results in Markdown.
func table(results [][]time.Duration) string {
	var out strings.Builder
	fmt.Fprintln(&out, "| who waits for the volumes | claims | median | 90 % | slowest |")
	fmt.Fprintln(&out, "|---|---:|---:|---:|---:|")
	for i, took := range results {
		fmt.Fprintf(&out, "| %s | %d | %.1f ms | %.1f ms | %.1f ms |\n", ways[i].who, len(took),
			milliseconds(quantile(took, 0.5)), milliseconds(quantile(took, 0.9)), milliseconds(quantile(took, 1)))
	}
	return out.String()
}
