// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// The API server restarts while fifty pods wait for their volumes. Schedulers get errors and retry. Prebind continues.
func testAPIServerRestart(t *testing.T, w *world) {
	const pods = 50
	b := newBench(t, w, nil)
	class := b.dynamic("25s")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	schedulers := []string{byHand, cluster.NoPreBindScheduler, byHand, cluster.NoPreBindScheduler, cluster.DefaultScheduler}
	var binds sync.WaitGroup
	defer binds.Wait()
	for n := range pods {
		name := fmt.Sprintf("pod-%d", n)
		require.NoError(t, b.createClaim(name, class))
		pod, err := b.createPod(name, schedulers[n%len(schedulers)], gen.UsesClaim(name))
		require.NoError(t, err)
		if pod.Spec.SchedulerName == byHand {
			binding := gen.Binding(pod, fmt.Sprintf("node-%d", n%6+1))
			binds.Go(func() { b.insist(ctx, binding) })
		}
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Equal(c, pods, b.countClaims(c, volume.AnnSelectedNode))
	}, patience, again, "all claims should have a selected node")
	require.Zero(t, b.countClaims(t, volume.AnnBindCompleted), "no claim should have a volume yet")

	began := time.Now()
	require.NoError(t, w.cluster.Process(cluster.APIServer).Restart(ctx))
	t.Logf("the API server was down for %s", time.Since(began).Round(time.Millisecond))

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		list, err := b.client.CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName!="})
		require.NoError(c, err)
		assert.Len(c, list.Items, pods)
	}, patience, again, "all pods should be bound")
	assert.Equal(t, pods, b.countClaims(t, volume.AnnBindCompleted))
	for n := range pods {
		name := fmt.Sprintf("pod-%d", n)
		pod, err := b.client.CoreV1().Pods(b.ns).Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		b.assertTopology(pod)
		b.assertClaimBound(name, pod.Spec.NodeName)
	}
}

// countClaims returns the number of claims of the test with the annotation.
func (b *bench) countClaims(t require.TestingT, annotation string) int {
	list, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).List(b.t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	n := 0
	for _, claim := range list.Items {
		if claim.Annotations[annotation] != "" {
			n++
		}
	}
	return n
}
