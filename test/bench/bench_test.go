// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"testing"
	"time"

	"github.com/prebind/prebind/test/bench/stat"
	"github.com/prebind/prebind/test/cluster"
)

// batch is the number of claims that are provisioned at the same time. It is small enough not to keep two processors busy.
const batch = 10

// BenchmarkClaimBoundToPodBound measures the delay from a claim bound to its pod bound, for claims that are provisioned in one
// to two seconds. kube-scheduler polls once a second, so the claims of a batch are bound at different times after a poll. Both
// times are those of a client's watch. Set the number of batches of ten claims with -benchtime, such as 5x.
func BenchmarkClaimBoundToPodBound(b *testing.B) {
	w := newWorld(b, cluster.Options{})
	rounds(b, "claims", func(ctx context.Context, out *results, round int) error {
		for _, way := range ways {
			found, err := w.delays(ctx, way.scheduler, spread(batch, time.Second, 2*time.Second))
			if err != nil {
				return err
			}
			for i, seconds := range found.seconds {
				out.add(way.name, round*batch+i, "ms", seconds*1000)
			}
		}
		return nil
	})
}

// quantile returns the quantile of the durations in milliseconds. See [stat.Quantile].
func quantile(durations []time.Duration, q float64) float64 {
	var milliseconds []float64
	for _, d := range durations {
		milliseconds = append(milliseconds, float64(d)/float64(time.Millisecond))
	}
	return stat.Quantile(milliseconds, q)
}
