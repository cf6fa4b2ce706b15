// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/install"
)

// way is a scheduler that waits for volumes itself, or leaves the wait to Prebind.
type way struct{ name, scheduler string }

// ways lists the compared ways. The first one is the baseline.
var ways = []way{
	{"kube-scheduler", cluster.DefaultScheduler},
	{"prebind", cluster.NoPreBindScheduler},
}

// patience is the timeout for a batch.
const patience = cluster.Patience

// worldNodes is the number of nodes, enough for 1,000 pods.
const worldNodes = 60

// world is a control plane with Prebind as shipped.
type world struct {
	cluster *cluster.Cluster
	client  kubernetes.Interface
	prebind *install.Prebind
}

// newWorld starts a control plane and two replicas with additional arguments.
func newWorld(tb testing.TB, o cluster.Options, args ...string) *world {
	tb.Helper()
	c := clustertest.Start(tb, o)
	require.NoError(tb, cluster.CreateNodes(tb.Context(), c.Client(), cluster.Nodes("node", worldNodes)...))
	binary, err := install.Build(tb.Context(), install.BuildOptions{Dir: c.Dir()})
	require.NoError(tb, err)
	prebind, err := install.New(tb.Context(), install.Options{Cluster: c, Binary: binary})
	require.NoError(tb, err)
	for range 2 {
		replica, err := prebind.Start(tb.Context(), args...)
		require.NoError(tb, err)
		tb.Cleanup(func() { clustertest.Kill(tb, replica.Process) })
	}
	return &world{cluster: c, client: c.Client(), prebind: prebind}
}

// follow returns the delays from claim bound to pod bound when n claims and n pods are bound. A pod has the name of its
// claim.
func follow(ctx context.Context, n int, claims, pods <-chan watch.Event) ([]time.Duration, error) {
	claimBound, podBound := map[string]time.Time{}, map[string]time.Time{}
	note := func(seen map[string]time.Time, name string, bound bool) {
		if _, known := seen[name]; bound && !known {
			seen[name] = time.Now()
		}
	}
	for len(claimBound) < n || len(podBound) < n {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case event, ok := <-claims:
			claim, right := event.Object.(*corev1.PersistentVolumeClaim)
			if !ok || !right {
				return nil, fmt.Errorf("the watch of claims has ended: %v", event.Object)
			}
			_, bound := claim.Annotations[volume.AnnBindCompleted]
			note(claimBound, claim.Name, bound && claim.Spec.VolumeName != "")
		case event, ok := <-pods:
			pod, right := event.Object.(*corev1.Pod)
			if !ok || !right {
				return nil, fmt.Errorf("the watch of pods has ended: %v", event.Object)
			}
			note(podBound, pod.Name, pod.Spec.NodeName != "")
		}
	}
	var took []time.Duration
	for name, at := range podBound {
		took = append(took, at.Sub(claimBound[name]))
	}
	return took, nil
}

// inParallel calls do for 0 to n-1 with the given number of workers. It returns the first error.
func inParallel(ctx context.Context, workers, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}
