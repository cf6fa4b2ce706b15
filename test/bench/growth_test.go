// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/component-helpers/storage/volume"

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
	return []growth{
		static("static-local", func(node string) []gen.VolumeOption { return []gen.VolumeOption{gen.OnNode(node)} }),
		static("static-shared", func(string) []gen.VolumeOption { return nil }),
		devices(), marks(),
	}
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
	return &grown{rivals: newRivals(tb, options, cluster.Nodes("node", 1), shipped{}, prebind), most: o.most}
}

// run measures at both sizes.
func (o growth) run(tb testing.TB, g *grown) *results {
	tb.Helper()
	ctx := tb.Context()
	g.out = &results{name: "growth-" + o.name}
	require.NoError(tb, cluster.WaitForPods(ctx, g.client, prebind))
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
			if err := errors.Join(cluster.Pause(ctx, 5*time.Second), g.rest(ctx)); err != nil {
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
	if err := cluster.Pause(ctx, window); err != nil {
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

// preFlight selects the time of a plugin's PreFlight, which does not write or wait.
func preFlight(plugin string) ownTime {
	return ownTime{what: "PreFlight", label: fmt.Sprintf("extension_point=%q,plugin=%q", "PreFlight", plugin)}
}

// static measures a bind to one of many free volumes of one class. The number of nodes stays the same.
func static(name string, options func(node string) []gen.VolumeOption) growth {
	const nodes, class = 500, "static"
	return growth{
		name: name, size: 2000, most: 150, controllers: true,
		fill: func(ctx context.Context, g *grown, had, n int) error {
			if had == 0 {
				if err := g.addNodes(ctx, min(nodes, n)); err != nil {
					return err
				}
				if _, err := g.client.StorageV1().StorageClasses().Create(ctx, gen.StorageClass(class, volume.NotSupportedProvisioner), metav1.CreateOptions{}); err != nil {
					return err
				}
			}
			return inParallel(ctx, 32, n-had, func(ctx context.Context, i int) error {
				own := append([]gen.VolumeOption{gen.VolumeOfClass(class)}, options(large((had+i)%g.large))...)
				_, err := g.client.CoreV1().PersistentVolumes().Create(ctx, gen.Volume(fmt.Sprintf("free-%d", had+i), own...), metav1.CreateOptions{})
				return err
			})
		},
		measure: func(ctx context.Context, g *grown, n int) error {
			pods := make([]*corev1.Pod, min(g.most, n/2))
			if err := inParallel(ctx, 16, len(pods), func(ctx context.Context, i int) error {
				name := fmt.Sprintf("static-%d-%d", n, i)
				claim := gen.Claim(name, gen.InNamespace(prebind), gen.OfClass(class))
				if _, err := g.client.CoreV1().PersistentVolumeClaims(prebind).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
					return err
				}
				var err error
				pods[i], err = g.createPod(ctx, name, gen.UsesClaim(name))
				return err
			}); err != nil {
				return err
			}
			if err := g.rest(ctx); err != nil {
				return err
			}
			return g.binds(ctx, n, "bind", len(pods), []ownTime{preFlight("volumebinding")}, func(ctx context.Context, i int) error {
				return g.bindTo(ctx, pods[i], large(i%g.large), nil)
			})
		},
	}
}

// devices measures a grant of a device, and the work of a replica at rest, with one record per node.
// Each record holds two bound pods with four devices each. Prebind writes the records itself.
func devices() growth {
	const perNode = 2
	return growth{
		name: "devices", size: 500, most: 200,
		fill: func(ctx context.Context, g *grown, had, n int) error {
			if err := g.addNodes(ctx, n); err != nil {
				return err
			}
			return g.turn(ctx, prebind, func(ctx context.Context) error {
				err := inParallel(ctx, 16, perNode*(n-had), func(ctx context.Context, i int) error {
					node := had + i/perNode
					pod, err := g.createPod(ctx, fmt.Sprintf("holder-%d-%d", node, i%perNode))
					if err != nil {
						return err
					}
					gpus := []string{"GPU-0,GPU-1,GPU-2,GPU-3", "GPU-4,GPU-5,GPU-6,GPU-7"}[i%perNode]
					return g.bindTo(ctx, pod, large(node), map[string]string{"device.prebind.dev/gpu": gpus})
				})
				if err != nil {
					return err
				}
				return g.rest(ctx) // Prebind confirms each grant after its bind.
			})
		},
		measure: func(ctx context.Context, g *grown, n int) error {
			// Measure the replica at rest before any bind, because Prebind confirms a grant after the bind.
			if err := g.idle(ctx, n, "10 s at rest"); err != nil {
				return err
			}
			pods, err := g.create(ctx, prebind, fmt.Sprintf("grant-%d", n), min(g.most, n), gen.Tolerates(corev1.TaintNodeNotReady))
			if err != nil {
				return err
			}
			if err := g.calm(ctx, prebind); err != nil {
				return err
			}
			own := []ownTime{preFlight("device"), {what: "PreBind", label: `extension_point="PreBind",plugin="device"`}}
			return g.binds(ctx, n, "bind", len(pods), own, func(ctx context.Context, i int) error {
				return g.bindTo(ctx, pods[i], large(i), map[string]string{"device.prebind.dev/gpu": "GPU-" + fmt.Sprint(8+n%7)})
			})
		},
	}
}

// sinceStart adds the usage of the replica since its start.
func (g *grown) sinceStart(ctx context.Context, size int, what string) error {
	now, err := g.usageAfter(ctx)
	if err != nil {
		return err
	}
	g.out.add(prebind, size, what+": API requests", sum(now.metrics, "rest_client_requests_total", ""))
	g.out.add(prebind, size, what+": CPU ms", now.cpu*1e3)
	return nil
}

// marks measures a replica that finds marks on ResourceClaims, which any user with the role edit can write.
// The number of claims stays the same. At the larger size, each claim has ten times as many marks.
func marks() growth {
	const claims = 50
	return growth{
		name: "marks", size: 500, most: 10,
		fill: func(ctx context.Context, g *grown, _, n int) error {
			return inParallel(ctx, 16, claims, func(ctx context.Context, i int) error {
				name := fmt.Sprintf("marked-%d", i)
				annotations := map[string]string{}
				for range max(n/claims, 1) {
					annotations[fmt.Sprintf("resource-claims.prebind.dev/%s.forged00-0000000001", uuid.NewUUID())] = `{"pod":"no-such-pod","node":"node-1"}`
				}
				patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
				if err != nil {
					return err
				}
				api := g.client.ResourceV1().ResourceClaims(prebind)
				if _, err := api.Create(ctx, gen.ResourceClaim(name, gen.InNamespace(prebind), gen.RequestsDevices("any.example.com", 1)), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
					return err
				}
				_, err = api.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "tenant"})
				return err
			})
		},
		measure: func(ctx context.Context, g *grown, n int) error {
			if err := g.sinceStart(ctx, n, "start until rest"); err != nil {
				return err
			}
			return g.idle(ctx, n, "10 s after it")
		},
	}
}
