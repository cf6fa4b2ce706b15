// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	leases "github.com/prebind/prebind/binder/replica"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/install"
)

// TestWrongClock: a replica shows the wrong time where its clock is wrong, from its
// start and after a step, and the right one when the clock is right again.
func TestWrongClock(t *testing.T) {
	w := &world{cluster: clustertest.Start(t, cluster.Options{StartTimeout: 5 * time.Minute})}
	require.NoError(t, w.connect())
	var err error
	w.prebind, err = install.New(t.Context(), install.Options{Cluster: w.cluster, Binary: build(t), Clock: true})
	require.NoError(t, err)
	started, err := w.prebind.Start(t.Context())
	require.NoError(t, err)
	w.renewsAt(t, 0)
	require.NoError(t, started.SetClock(-time.Hour))
	w.renewsAt(t, -time.Hour)
	require.NoError(t, started.Kill())
	require.NoError(t, started.SetClock(time.Hour))
	require.NoError(t, started.Start())
	require.NoError(t, started.WaitReady(t.Context()))
	w.renewsAt(t, time.Hour)
	require.NoError(t, started.SetClock(0))
	w.renewsAt(t, 0)
}

// renewsAt waits for a lease that was renewed at a time that is wrong by so much: a
// replica renews its own every ten seconds.
func (w *world) renewsAt(t *testing.T, wrong time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var last []leases.Report
	for {
		reports, err := leases.Reports(ctx, w.client, install.Namespace)
		require.NoError(t, err, "no lease was renewed at a time that is wrong by %s; the last were: %+v", wrong, last)
		for _, r := range reports {
			if off := r.Ahead - wrong; off.Abs() < 30*time.Second {
				return
			}
		}
		last = reports
		pause(ctx, 200*time.Millisecond)
	}
}
