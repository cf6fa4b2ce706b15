// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// inParallel calls do for 0 to n-1 with the given number of workers. It returns the first error.
func inParallel(ctx context.Context, workers, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}
