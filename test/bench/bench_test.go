// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
)

// batch is the number of claims that are provisioned at the same time. It is small enough not to keep two processors busy.
const batch = 10

// BenchmarkClaimBoundToPodBound measures the delay from a claim bound to its pod bound, for claims that are provisioned in one
// to two seconds. Both times are those of a client's watch. Set the number of batches of ten claims with -benchtime, such
// as 5x.
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
			b.ReportMetric(0, "ns/op") // Provisioning takes most of the time.
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

// quantile interpolates linearly. Without values it returns 0.
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

// ratio returns the ratio of the medians.
func ratio(first, second []time.Duration) float64 {
	return float64(quantile(first, 0.5)) / float64(max(quantile(second, 0.5), 1))
}

// table returns the results in Markdown.
func table(results [][]time.Duration) string {
	var out strings.Builder
	fmt.Fprintln(&out, "| Waits for the volumes | Claims | Median | p90 | Worst |")
	fmt.Fprintln(&out, "|---|---:|---:|---:|---:|")
	for i, took := range results {
		fmt.Fprintf(&out, "| %s | %d | %.1f ms | %.1f ms | %.1f ms |\n", ways[i].who, len(took),
			milliseconds(quantile(took, 0.5)), milliseconds(quantile(took, 0.9)), milliseconds(quantile(took, 1)))
	}
	return out.String()
}
