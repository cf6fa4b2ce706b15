// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/prebind/prebind/test/cluster"
)

// unlearned is the suffix of the variant in which the replicas have just started.
const unlearned = "-unlearned"

// BenchmarkDelayOfACrowd measures the delay from claim bound to pod bound for 1,000 pods
// whose claims take 40 s each, with two replicas. In the first round the replicas know no
// durations. That round has a separate variant. The benchmark needs at least two rounds.
func BenchmarkDelayOfACrowd(b *testing.B) {
	w := newWorld(b, cluster.Options{SchedulerConfig: schedulerWith(unlimited)})
	w.crowds(b, "crowd", ways)
}

// BenchmarkDelayOfACrowdWithSeats measures the same delay for a scheduler whose Bindings occupy
// seats of the API server. It omits kube-scheduler's own VolumeBinding.
func BenchmarkDelayOfACrowdWithSeats(b *testing.B) {
	w := newWorld(b, cluster.Options{SchedulerConfig: schedulerWith(unlimited)})
	require.NoError(b, w.unexempt(b.Context()))
	w.crowds(b, "crowd-seats", ways[1:])
}

// unexempt deletes the FlowSchema that exempts kube-scheduler's Bindings. It returns when all
// replicas have reacted.
func (w *world) unexempt(ctx context.Context) error {
	if err := w.client.FlowcontrolV1().FlowSchemas().Delete(ctx, "prebind", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		for _, replica := range w.prebind.Replicas() {
			metrics, err := replica.Metrics(ctx)
			if err != nil || sum(metrics, "prebind_max_holds", "") != maxHolds {
				return false, err
			}
		}
		return true, nil
	})
}

// maxHolds is the shipped --max-holds of one replica.
const maxHolds = 32

// crowds runs the rounds of a benchmark. Each round measures every way once.
func (w *world) crowds(b *testing.B, name string, ways []way) {
	b.Helper()
	rounds(b, name, func(ctx context.Context, out *results, round int) error {
		for i := range ways {
			if err := w.crowd(ctx, out, ways[(i+round)%len(ways)], round); err != nil {
				return err
			}
		}
		return nil
	})
}

// crowd measures one way once.
func (w *world) crowd(ctx context.Context, out *results, way way, round int) error {
	variant, observe := way.name, observer{cluster: w.cluster, client: w.client}
	if variant == prebind {
		observe.replicas = w.prebind.Replicas()
	}
	if variant == prebind && round == 0 {
		variant += unlearned
	}
	if err := calm(ctx, w.cluster.Process(cluster.APIServer).PID(), w.cluster.Process(cluster.ControllerManager).PID()); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	look := observe.look(watching)
	found, err := w.delays(ctx, way.scheduler, slices.Repeat([]time.Duration{40 * time.Second}, 1000))
	stop()
	seen := <-look
	if err := errors.Join(err, seen.err); err != nil {
		return err
	}
	found.add(out, variant, round)
	seen.add(out, variant, round)
	return nil
}
