// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/bench/stat"
	"github.com/prebind/prebind/test/cluster"
)

// batch is the number of claims that are provisioned at the same time. It is small enough not to keep two processors busy.
const batch = 10

// BenchmarkClaimBoundToPodBound measures the delay from a claim bound to its pod bound, for claims that are provisioned in one
// to two seconds. kube-scheduler polls once a second, so the claims of a batch are bound at different times after a poll. Both
// times are those of a client's watch. Set the number of batches of ten claims with -benchtime, such as 5x.
func BenchmarkClaimBoundToPodBound(b *testing.B) {
	w, out, round := newWorld(b, cluster.Options{}), &results{name: "claims"}, 0
	waits := spread(batch, time.Second, 2*time.Second)
	for b.Loop() {
		for _, way := range ways {
			namespace, err := w.namespace(b.Context())
			require.NoError(b, err)
			found, err := w.delays(b.Context(), way.scheduler, namespace, round, waits)
			require.NoError(b, err)
			for i, seconds := range found.seconds {
				out.add(way.name, round*batch+i, "ms", seconds*1000)
			}
		}
		round++
	}
	b.ReportMetric(0, "ns/op") // Provisioning takes most of the time.
	for _, way := range ways {
		took := stat.Values(out.samples, "ms", way.name)
		b.Logf("%s: p50 %.1f ms, p90 %.1f ms, worst %.1f ms", way.who, stat.Median(took), stat.Quantile(took, 0.9), stat.Quantile(took, 1))
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
