// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	leases "github.com/prebind/prebind/binder/replica"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// TestWrongClock checks that the clock of a replica is wrong after a start and after a step, and right after a reset. A step
// does not change the reported age of a bind.
func TestWrongClock(t *testing.T) {
	t.Parallel() // TestFaults also mostly waits.
	w := &world{cluster: clustertest.Start(t, cluster.Options{StartTimeout: 5 * time.Minute})}
	require.NoError(t, w.connect())
	require.NoError(t, cluster.CreateNodes(t.Context(), w.client, cluster.Nodes("node", 1)...))
	var err error
	w.prebind, err = install.New(t.Context(), install.Options{Cluster: w.cluster, Binary: build(t, nil), Clock: true})
	require.NoError(t, err)
	started, err := w.prebind.Start(t.Context())
	require.NoError(t, err)
	w.objects(t)
	w.renewsAt(t, 0, 0)
	giveUp := w.waits(t)
	for _, wrong := range []time.Duration{time.Hour, -time.Hour} {
		require.NoError(t, started.SetClock(wrong))
		age := w.renewsAt(t, wrong, 1)[0]
		assert.True(t, age > -5*time.Second && age < 30*time.Minute, "the age of the bind is small, got %s with a clock that is wrong by %s", age, wrong)
	}
	giveUp()
	require.NoError(t, started.Kill())
	require.NoError(t, started.SetClock(time.Hour))
	require.NoError(t, started.Start())
	require.NoError(t, started.WaitReady(t.Context()))
	w.renewsAt(t, time.Hour, 0)
	require.NoError(t, started.SetClock(0))
	w.renewsAt(t, 0, 0)
}

// waits starts a bind that waits for a state of its node. The returned function ends the call, and checks that the bind waited.
func (w *world) waits(t *testing.T) (giveUp func()) {
	t.Helper()
	pod, err := w.client.CoreV1().Pods(ns).Create(t.Context(), gen.Pod("waits", gen.InNamespace(ns), gen.Scheduler(byHand), gen.EndsAtOnce(),
		gen.Annotation("node-state.prebind.dev/expect", openKey+"=never"), gen.Annotation("node-state.prebind.dev/wait", "5m")), metav1.CreateOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() {
		done <- w.client.CoreV1().Pods(ns).Bind(ctx, gen.Binding(pod, nodeName(0)), metav1.CreateOptions{})
	}()
	return func() {
		cancel()
		err := <-done
		require.Error(t, err)
		require.False(t, apierrors.IsForbidden(err), "the bind should wait: %v", err)
	}
}

// renewsAt waits for a lease with the given number of binds and a renewal time with the given offset. It returns the ages of
// the binds. A replica renews its lease every ten seconds.
func (w *world) renewsAt(t *testing.T, wrong time.Duration, binds int) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Patience)
	defer cancel()
	var last []leases.Status
	for {
		reports, err := leases.Statuses(ctx, w.client, install.Namespace)
		require.NoError(t, err, "no lease has a renewal time with offset %s and %d binds; last reports: %+v", wrong, binds, last)
		for _, r := range reports {
			off := r.ClockAhead.Duration - wrong
			if off.Abs() > 30*time.Second || len(r.InFlight) != binds {
				continue
			}
			var ages []time.Duration
			for _, f := range r.InFlight {
				ages = append(ages, r.Reported.Sub(f.Since.Time))
			}
			return ages
		}
		last = reports
		pause(ctx, 200*time.Millisecond)
	}
}
