// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

const (
	// slowDriver attaches devices, and attached is the condition of a device that it has attached.
	slowDriver = "slow.example.com"
	attached   = "attached"
	// slowNode has the devices.
	slowNode = "node-1"
	manual   = "manual-scheduler"
)

// BenchmarkTwoWaits measures how long a pod is delayed that waits 10 s for a volume and 10 s for a device, by kube-scheduler, and by
// Prebind for a client that posts only the Binding. The baseline is Prebind with the volume alone. All pods wait at the same time.
func BenchmarkTwoWaits(b *testing.B) {
	w, out, round := newWorld(b, cluster.Options{}), &results{name: "twowaits"}, 0
	require.NoError(b, w.publishDevices(b.Context(), 1000))
	for b.Loop() {
		took, err := w.twoWaits(b.Context(), round, 10*time.Second)
		require.NoError(b, err)
		for way, seconds := range took {
			out.add(way, round, "seconds", seconds)
			b.Logf("%s: %.3f s", way, seconds)
		}
		round++
	}
	b.ReportMetric(0, "ns/op") // The waits take most of the time.
	out.ratio(b, "seconds", "prebind", "one wait")
	out.ratio(b, "seconds", "kube-scheduler", "one wait")
	require.NoError(b, out.save())
}

// publishDevices publishes devices that need time until the node can use them.
func (w *world) publishDevices(ctx context.Context, n int) error {
	api := w.client.ResourceV1()
	if _, err := api.DeviceClasses().Create(ctx, gen.DeviceClass(slowDriver), metav1.CreateOptions{}); err != nil {
		return err
	}
	var devices []resourcev1.Device
	for _, d := range gen.Devices("nic", min(n, resourcev1.ResourceSliceMaxDevices)) {
		devices = append(devices, gen.BoundBy(d, attached, "broken"))
	}
	_, err := api.ResourceSlices().Create(ctx, gen.ResourceSlice(slowDriver, slowNode, devices...), metav1.CreateOptions{})
	return err
}

// twoWaits returns the seconds from the creation of each pod until it is bound.
func (w *world) twoWaits(ctx context.Context, round int, wait time.Duration) (map[string]float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait+patience, fmt.Errorf("the pods of round %d are not bound", round))
	defer cancel()
	ns, err := w.namespace(ctx)
	if err != nil {
		return nil, err
	}
	class := gen.StorageClass(classOf(wait), cluster.ProvisionerName, gen.Parameter("delay", wait.String()))
	if round == 0 {
		if _, err := w.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	ways := []struct {
		name, scheduler string
		device          int
	}{{"kube-scheduler", cluster.DefaultScheduler, 3 * round}, {"prebind", manual, 3*round + 1}, {"one wait", manual, -1}}
	seconds := make([]float64, len(ways))
	err = inParallel(ctx, len(ways), len(ways), func(ctx context.Context, i int) error {
		way := ways[i]
		name := fmt.Sprintf("pod-%d", i)
		options := []gen.PodOption{gen.InNamespace(ns), gen.EndsAtOnce(), gen.Scheduler(way.scheduler), gen.UsesClaim(name)}
		if _, err := w.client.CoreV1().PersistentVolumeClaims(ns).Create(ctx, gen.Claim(name, gen.InNamespace(ns), gen.OfClass(class.Name)), metav1.CreateOptions{}); err != nil {
			return err
		}
		if way.device >= 0 {
			options = append(options, gen.UsesResourceClaim(name))
			claim := gen.ResourceClaim(name, gen.InNamespace(ns), gen.RequestsDevices(slowDriver, 1))
			if _, err := w.client.ResourceV1().ResourceClaims(ns).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
				return err
			}
			if way.scheduler == manual {
				device := gen.BoundBy(gen.Device(fmt.Sprintf("nic-%d", way.device)), attached, "broken")
				allocated := gen.ResourceClaim(name, gen.InNamespace(ns), gen.RequestsDevices(slowDriver, 1), gen.AllocatedFor(slowNode, slowDriver, device))
				if err := w.changeClaim(ctx, ns, name, func(c *resourcev1.ResourceClaim) { c.Status = allocated.Status }); err != nil {
					return err
				}
			}
		}
		began := time.Now()
		pod, err := w.client.CoreV1().Pods(ns).Create(ctx, gen.Pod(name, options...), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if way.device >= 0 {
			timer := time.AfterFunc(wait, func() { _ = w.changeClaim(ctx, ns, name, attach) })
			defer timer.Stop()
		}
		if way.scheduler == manual {
			if err := w.client.CoreV1().Pods(ns).Bind(ctx, gen.Binding(pod, slowNode), metav1.CreateOptions{}); err != nil {
				return err
			}
		} else if err := w.untilBound(ctx, pod); err != nil {
			return err
		}
		seconds[i] = time.Since(began).Seconds()
		return nil
	})
	took := map[string]float64{}
	for i, way := range ways {
		took[way.name] = seconds[i]
	}
	return took, err
}

// attach reports all devices of the claim as attached.
func attach(c *resourcev1.ResourceClaim) {
	for _, r := range c.Status.Allocation.Devices.Results {
		c.Status.Devices = append(c.Status.Devices, resourcev1.AllocatedDeviceStatus{
			Driver: r.Driver, Pool: r.Pool, Device: r.Device,
			Conditions: []metav1.Condition{{Type: attached, Status: metav1.ConditionTrue, Reason: "Attached", LastTransitionTime: metav1.Now()}},
		})
	}
}

func (w *world) changeClaim(ctx context.Context, ns, name string, change func(*resourcev1.ResourceClaim)) error {
	claims := w.client.ResourceV1().ResourceClaims(ns)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		stored, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(stored)
		_, err = claims.UpdateStatus(ctx, stored, metav1.UpdateOptions{})
		return err
	})
}

// untilBound waits until the pod has a node.
func (w *world) untilBound(ctx context.Context, pod *corev1.Pod) error {
	events, err := w.client.CoreV1().Pods(pod.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String()})
	if err != nil {
		return err
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		if seen, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Deleted && seen.Spec.NodeName != "" {
			return nil
		}
	}
	return context.Cause(ctx)
}
