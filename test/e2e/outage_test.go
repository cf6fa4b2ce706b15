// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/cluster"
)

// During an outage of Prebind, exempt pods are bound without it. All other pods are bound when it is back. This test is not parallel,
// so that the other tests wait for it.
func TestOutage(t *testing.T) {
	for _, r := range shared.prebind.Replicas() {
		require.NoError(t, r.Process.Stop())
	}
	exempt := newBench(t, shared, map[string]string{"prebind.dev/exempt": ""})
	exempt.pod(cluster.DefaultScheduler)
	exempt.untilBound()
	assert.Empty(t, exempt.decisions())

	other := newBench(t, shared, nil)
	other.pod(cluster.DefaultScheduler)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Contains(c, strings.Join(other.events(), "\n"), "failed calling webhook")
	}, patience, 100*time.Millisecond, "the scheduler should report that it cannot bind")
	other.until("still unbound", func(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" })

	out, errs, code := other.command("explain", "pod", "--node=node-1", "-n="+other.ns)
	assert.Equal(t, 3, code, "explain should report an unknown result during an outage")
	assert.Empty(t, out)
	assert.Contains(t, errs, "the API server cannot reach Prebind")
	assert.Equal(t, 1, strings.Count(errs, "\n"), errs)

	for _, r := range shared.prebind.Replicas() {
		require.NoError(t, r.Restart(t.Context()))
	}
	other.assertTopology(other.untilBound())
}
