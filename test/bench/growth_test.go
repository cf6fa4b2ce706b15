// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// growthPart scales the sizes of BenchmarkGrowth and BenchmarkScale.
var growthPart = flag.Float64("scale-part", 1, "Fraction of the full sizes for BenchmarkGrowth and BenchmarkScale, such as 0.1.")

// growth measures the cost of one operation in a cluster of one size and of ten times that size.
type growth struct {
	name string
	// size is the smaller size. The larger size is ten times as large.
	size int
	// most is the maximum number of measured binds of one kind.
	most int
	// controllers keeps kube-controller-manager running. Otherwise it stops before fill.
	controllers bool
	// fill creates the objects from had to n.
	fill func(ctx context.Context, g *grown, had, n int) error
	// measure runs when the replica is idle.
	measure func(ctx context.Context, g *grown, n int) error
}

// growths lists the measurements of BenchmarkGrowth.
func growths() []growth {
	return []growth{staticLocal(), staticShared(), devices(), marks()}
}

// grown is the cluster of one measurement.
type grown struct {
	*rivals
	out *results
	// most is the maximum number of measured binds of one kind.
	most int
	// large is the number of existing nodes with the prefix large-.
	large int
}

// BenchmarkGrowth measures cost against size. Each sub-benchmark writes growth-NAME.csv with the size as the
// round. It runs each sub-benchmark once, regardless of -benchtime.
func BenchmarkGrowth(b *testing.B) {
	for _, one := range growths() {
		b.Run(one.name, func(b *testing.B) {
			one.size = max(int(float64(one.size)**growthPart), 20)
			require.NoError(b, one.run(b, one.cluster(b)).save())
		})
	}
}

// cluster starts a control plane for this measurement.
func (o growth) cluster(tb testing.TB) *grown {
	tb.Helper()
	options := cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}
	return &grown{rivals: newRivals(tb, options, cluster.Nodes("node", 1), prebind), most: o.most}
}

// run measures at both sizes.
func (o growth) run(tb testing.TB, g *grown) *results {
	tb.Helper()
	ctx := tb.Context()
	g.out = &results{name: "growth-" + o.name}
	require.NoError(tb, g.untilAccounts(ctx, prebind))
	if !o.controllers {
		require.NoError(tb, g.cluster.Process(cluster.ControllerManager).Stop())
	}
	had := 0
	for _, n := range []int{o.size, 10 * o.size} {
		require.NoError(tb, o.fill(ctx, g, had, n))
		had = n
		require.NoError(tb, g.forgetLeases(ctx))
		require.NoError(tb, g.turn(ctx, prebind, func(ctx context.Context) error {
			// The new leader starts within seconds.
			if err := errors.Join(pass(ctx, 5*time.Second), g.rest(ctx)); err != nil {
				return err
			}
			return o.measure(ctx, g, n)
		}))
	}
	return g.out
}

// addNodes creates the nodes large-1 to large-n that do not exist yet, with 50 images each.
func (g *grown) addNodes(ctx context.Context, n int) error {
	had := g.large
	if n <= had {
		return nil
	}
	g.large = n
	nodes := cluster.Nodes("large", n)
	return inParallel(ctx, 32, n-had, func(ctx context.Context, i int) error { return g.addNode(ctx, nodes[had+i]) })
}

// addNode creates a ready node. Without kube-controller-manager the node keeps the taint of new nodes, which
// the pods tolerate.
func (r *rivals) addNode(ctx context.Context, made *corev1.Node) error {
	node, err := r.client.CoreV1().Nodes().Create(ctx, made, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status.DeepCopyInto(&node.Status)
	node.Status.Images = images(50)
	node.ResourceVersion = "" // kube-controller-manager also writes to new nodes.
	_, err = r.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// createPod creates a pod that no scheduler binds.
func (g *grown) createPod(ctx context.Context, name string, options ...gen.PodOption) (*corev1.Pod, error) {
	own := append([]gen.PodOption{gen.InNamespace(prebind), gen.EndsAtOnce(), gen.Scheduler("unscheduled"), gen.Tolerates(corev1.TaintNodeNotReady)}, options...)
	return g.client.CoreV1().Pods(prebind).Create(ctx, gen.Pod(name, own...), metav1.CreateOptions{})
}

// rest waits until the API server and the replica are nearly idle. A new leader reads all records once, which
// takes up to a minute.
func (g *grown) rest(ctx context.Context) error {
	return calmWithin(ctx, 90*time.Second, 300*time.Millisecond, g.processes[prebind].PID(), g.cluster.Process(cluster.APIServer).PID())
}

// pass waits for the duration, or until the context ends.
func pass(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// window is the duration of the measurement of an idle replica. Sweeps are ten seconds apart.
const window = 30 * time.Second

// usage contains the resources that the replica has used since its start.
type usage struct {
	// cpu is in seconds and counts in steps of 10 ms.
	cpu     float64
	metrics string
}

// usageBefore reads the usage. It reads the CPU time last, and usageAfter reads it first, so that the
// difference excludes the cost of the metrics.
func (g *grown) usageBefore(ctx context.Context) (u usage, err error) {
	if u.metrics, err = g.prebind.Replicas()[0].Metrics(ctx); err == nil {
		u.cpu, err = processor(g.processes[prebind].PID())
	}
	return u, err
}

func (g *grown) usageAfter(ctx context.Context) (u usage, err error) {
	if u.cpu, err = processor(g.processes[prebind].PID()); err == nil {
		u.metrics, err = g.prebind.Replicas()[0].Metrics(ctx)
	}
	return u, err
}

// more returns the growth of a metric.
func (u usage) more(before usage, name, label string) float64 {
	return sum(u.metrics, name, label) - sum(before.metrics, name, label)
}

// ownTime is a metric of the replica with the time that a plugin has used.
type ownTime struct{ what, label string }

// binds measures n binds, one after another: the median time of a client, and per bind the usage of the
// replica and the time of its plugins from its own metrics.
func (g *grown) binds(ctx context.Context, size int, what string, n int, own []ownTime, bind func(ctx context.Context, i int) error) error {
	before, err := g.usageBefore(ctx)
	if err != nil {
		return err
	}
	took := make([]time.Duration, n)
	for i := range n {
		began := time.Now()
		if err := bind(ctx, i); err != nil {
			return err
		}
		took[i] = time.Since(began)
	}
	after, err := g.usageAfter(ctx)
	if err != nil {
		return err
	}
	add := func(metric string, value float64) { g.out.add(prebind, size, what+": "+metric, value) }
	add("p50 ms", quantile(took, 0.5))
	add("CPU ms", (after.cpu-before.cpu)*1e3/float64(n))
	add("allocated KiB", after.more(before, "go_memstats_alloc_bytes_total", "")/1024/float64(n))
	add("API requests", after.more(before, "rest_client_requests_total", "")/float64(n))
	for _, o := range own {
		add(o.what+" ms", after.more(before, "prebind_plugin_duration_seconds_sum", o.label)*1e3/float64(n))
	}
	return nil
}

// idle measures the usage of the replica without binds, per ten seconds.
func (g *grown) idle(ctx context.Context, size int, what string) error {
	before, err := g.usageBefore(ctx)
	if err != nil {
		return err
	}
	if err := pass(ctx, window); err != nil {
		return err
	}
	after, err := g.usageAfter(ctx)
	if err != nil {
		return err
	}
	const tens = float64(window / (10 * time.Second))
	g.out.add(prebind, size, what+": CPU ms", (after.cpu-before.cpu)*1e3/tens)
	g.out.add(prebind, size, what+": allocated KiB", after.more(before, "go_memstats_alloc_bytes_total", "")/1024/tens)
	g.out.add(prebind, size, what+": API requests", after.more(before, "rest_client_requests_total", "")/tens)
	return nil
}

// bindTo posts the Binding that kube-scheduler would post, with additional annotations.
func (g *grown) bindTo(ctx context.Context, pod *corev1.Pod, node string, annotations map[string]string) error {
	b := bindingOf(pod, 0)
	b.Target.Name, b.Annotations = node, annotations
	return g.client.CoreV1().Pods(pod.Namespace).Bind(ctx, b, metav1.CreateOptions{})
}

func large(i int) string { return fmt.Sprintf("large-%d", i+1) }
