// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestMeter_Overload checks when a check has no result because of the cluster.
func TestMeter_Overload(t *testing.T) {
	const length = 20 * time.Second
	// after makes calls of the duration from the time on, and calls of 10 ms before.
	after := func(from, took time.Duration, err error) func(time.Duration) (time.Duration, error) {
		return func(now time.Duration) (time.Duration, error) {
			if now >= from {
				return took, err
			}
			return 10 * time.Millisecond, nil
		}
	}
	tests := map[string]struct {
		reason string
		call   func(now time.Duration) (time.Duration, error)
		want   string
	}{
		"Idle":       {reason: "the scheduler is slow, not the cluster", call: after(0, 10*time.Millisecond, nil)},
		"Busy":       {reason: "a call of less than a second does not explain a failure", call: after(0, 900*time.Millisecond, nil)},
		"Once":       {reason: "one slow call of 1.5 s does not explain a failure after 20 s", call: after(18*time.Second, 1500*time.Millisecond, nil)},
		"Overloaded": {reason: "every call is slow", call: after(0, 4*time.Second, nil), want: "the cluster is overloaded: 13 of 13 dry-run Bindings of this command failed or took more than 1s"},
		"Stuck":      {reason: "a call does not last longer", call: after(10*time.Second, time.Hour, nil), want: "the cluster is overloaded: 6 of 26 dry-run Bindings of this command failed or took more than 1s"},
		"Fails":      {reason: "a call that fails at once counts", call: after(10*time.Second, 0, errors.New("connection refused")), want: "the cluster is overloaded: 20 of 40 dry-run Bindings of this command failed or took more than 1s"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var m meter
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				overload := m.watch()
				go m.run(ctx, func(ctx context.Context) error {
					took, err := tc.call(time.Since(began))
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(took):
						return err
					}
				})
				<-time.After(length)
				assert.Equal(t, tc.want, overload(), tc.reason)
				assert.Empty(t, m.watch()(), "a later check is not affected")
			})
		})
	}
}
