// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// schedulerWith returns a configuration of kube-scheduler with another client limit, in requests per second.
// The default is 50.
func schedulerWith(qps int) []byte {
	return fmt.Appendf(cluster.DefaultSchedulerConfig(), "clientConnection:\n  qps: %d\n  burst: %d\n", qps, 2*qps)
}

// unlimited is a client limit that the benchmarks do not reach.
const unlimited = 5000

// BenchmarkScheduler measures the pods per second that kube-scheduler binds: 2,000 pods to 500 nodes, with four
// times the default client limit. Each loop is a round that measures every variant once.
//
// Without a client limit, kube-scheduler posts a thousand Bindings at the same time, with or without a webhook.
// API priority and fairness rejects some of them, and the client repeats those after up to a minute. That delay
// would dominate the result.
func BenchmarkScheduler(b *testing.B) {
	variants := []string{none, constant, prebind}
	r := newRivals(b, cluster.Options{WithoutProvisioner: true, SchedulerConfig: schedulerWith(200)}, cluster.Nodes("node", 500), shipped{}, variants...)
	takeTurns(b, "scheduler", func(ctx context.Context, out *results, variant string, round int) error {
		return r.schedule(ctx, out, variant, round, 2000)
	}, variants...)
}

// schedule measures one variant once. The pods exist before kube-scheduler starts. The result is the time from
// the first pod bound to the last.
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
		if err := r.calm(ctx, variant); err != nil {
			return err
		}
		before := r.cluster.Services().Opened()
		took, err := r.firstToLast(ctx, variant, n, scheduler.Start)
		if err != nil {
			return err
		}
		out.add(variant, round, "connections/bind", float64(r.cluster.Services().Opened()-before)/float64(n))
		out.add(variant, round, "pods/s", float64(n-1)/took.Seconds())
		if err := r.check(ctx, variant, pods[n/2].Name); err != nil {
			return err
		}
		return errors.Join(scheduler.WaitReady(ctx), r.clear(ctx, variant))
	})
}

// firstToLast calls begin, and returns the time from the first pod of the namespace bound to the n-th. It
// watches as informers do, because a busy machine may be too slow for a plain watch.
func (r *rivals) firstToLast(ctx context.Context, namespace string, n int, begin func() error) (time.Duration, error) {
	pods := cache.NewListWatchFromClient(r.client.CoreV1().RESTClient(), "pods", namespace, fields.Everything())
	bound := map[string]bool{}
	var first, last time.Time
	_, err := watchtools.UntilWithSync(ctx, pods, &corev1.Pod{}, func(cache.Store) (bool, error) { return false, begin() }, func(event watch.Event) (bool, error) {
		pod, right := event.Object.(*corev1.Pod)
		if !right {
			return false, fmt.Errorf("the watch of pods returned a %T", event.Object)
		}
		if pod.Spec.NodeName != "" && !bound[pod.Name] {
			bound[pod.Name], last = true, time.Now()
			if len(bound) == 1 {
				first = last
			}
		}
		return len(bound) >= n, nil
	})
	if err != nil {
		return 0, fmt.Errorf("%d of %d pods are bound: %w", len(bound), n, errors.Join(err, context.Cause(ctx)))
	}
	return last.Sub(first), nil
}
