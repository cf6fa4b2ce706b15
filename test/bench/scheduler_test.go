// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// fastScheduler is kube-scheduler without the limit that its client sets itself: by
// default it binds 50 pods a second, and no webhook would make a difference.
func fastScheduler() []byte {
	return append(cluster.DefaultSchedulerConfig(), "clientConnection:\n  qps: 5000\n  burst: 10000\n"...)
}

// BenchmarkScheduler measures how many pods a second kube-scheduler binds, 2,000 of
// them to 500 nodes. A loop is a round in which each variant has its turn.
func BenchmarkScheduler(b *testing.B) {
	variants := []string{none, constant, prebind}
	r := newRivals(b, cluster.Options{WithoutProvisioner: true, SchedulerConfig: fastScheduler()}, cluster.Nodes("node", 500), variants...)
	out := &results{name: "scheduler"}
	round := 0
	for b.Loop() {
		for i := range variants {
			if err := r.schedule(b.Context(), out, variants[(i+round)%len(variants)], round, 2000); err != nil {
				b.Fatal(err)
			}
		}
		round++
	}
	b.ReportMetric(0, "ns/op") // Mostly pods in the making.
	out.ratio(b, "pods/s", prebind, none)
	out.ratio(b, "pods/s", prebind, constant)
	out.ratio(b, "pods/s", constant, none)
	require.NoError(b, out.save())
}

// TestScheduler runs a short round. What it takes is not judged.
func TestScheduler(t *testing.T) {
	variants := []string{none, prebind}
	r := newRivals(t, cluster.Options{WithoutProvisioner: true, SchedulerConfig: fastScheduler()}, cluster.Nodes("node", 3), variants...)
	out := &results{name: "scheduler"}
	for _, variant := range variants {
		require.NoError(t, r.schedule(t.Context(), out, variant, 0, 20))
	}
	require.Len(t, out.samples, len(variants))
	for _, s := range out.samples {
		assert.Positive(t, s.Value, s.Variant)
	}
}

// schedule measures one variant once: the pods are there when kube-scheduler starts,
// and what counts is the time from the first bound to the last.
func (r *rivals) schedule(ctx context.Context, out *results, variant string, round, n int) error {
	return r.turn(ctx, variant, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the pods of %s are not bound after %s", variant, patience))
		defer cancel()
		scheduler := r.cluster.Process(cluster.Scheduler)
		if err := scheduler.Stop(); err != nil {
			return err
		}
		pods, err := r.create(ctx, variant, fmt.Sprintf("round-%d", round), n, gen.Scheduler(cluster.DefaultScheduler))
		if err != nil {
			return err
		}
		all, err := r.client.CoreV1().Pods(variant).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		seen, err := r.client.CoreV1().Pods(variant).Watch(ctx, metav1.ListOptions{ResourceVersion: all.ResourceVersion})
		if err != nil {
			return err
		}
		defer seen.Stop()
		if err := r.calm(ctx, variant); err != nil {
			return err
		}
		if err := scheduler.Start(); err != nil {
			return err
		}
		took, err := firstToLast(ctx, n, seen.ResultChan())
		if err != nil {
			return err
		}
		out.add(variant, round, "pods/s", float64(n-1)/took.Seconds())
		if err := r.check(ctx, variant, pods[n/2].Name); err != nil {
			return err
		}
		return errors.Join(scheduler.WaitReady(ctx), r.clear(ctx, variant))
	})
}

// firstToLast is the time from the first pod that is seen bound to the n-th.
func firstToLast(ctx context.Context, n int, pods <-chan watch.Event) (time.Duration, error) {
	bound := map[string]bool{}
	var first time.Time
	for len(bound) < n {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case event, ok := <-pods:
			pod, right := event.Object.(*corev1.Pod)
			if !ok || !right {
				return 0, fmt.Errorf("the watch of pods has ended: %v", event.Object)
			}
			if pod.Spec.NodeName == "" {
				continue
			}
			if len(bound) == 0 {
				first = time.Now()
			}
			bound[pod.Name] = true
		}
	}
	return time.Since(first), nil
}
