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
	next := make(chan int)
	group.Go(func() error {
		defer close(next)
		for i := range n {
			select {
			case next <- i:
			case <-ctx.Done():
				return nil
			}
		}
		return nil
	})
	for range workers {
		group.Go(func() error {
			for i := range next {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}
