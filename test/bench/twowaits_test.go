// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
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
	// slowWait is the time until a volume exists, and until a device is attached.
	slowWait = 10 * time.Second
)

// twoWays lists the pods of a round. Each waits for a volume.
var twoWays = []struct {
	name string
	// direct is a client that posts only the Binding. Otherwise kube-scheduler binds the pod, and waits itself.
	direct bool
	// device also waits for a device.
	device bool
}{
	{name: "kube-scheduler", device: true},
	{name: prebind, direct: true, device: true},
	{name: "one wait", direct: true},
}

// BenchmarkTwoWaits measures the time until a pod is bound that waits 10 s for a volume and 10 s for a device. The baseline is
// Prebind with the volume alone. All pods of a round wait at the same time.
func BenchmarkTwoWaits(b *testing.B) {
	w := newWorld(b, cluster.Options{})
	require.NoError(b, w.publishDevices(b.Context()))
	rounds(b, "twowaits", func(ctx context.Context, out *results, round int) error {
		seconds, err := w.twoWaits(ctx, round)
		if err != nil {
			return err
		}
		for i, way := range twoWays {
			out.add(way.name, round, "seconds", seconds[i])
		}
		return nil
	})
}

// publishDevices creates the class of the volumes, and devices that a node can use only after they are attached.
func (w *world) publishDevices(ctx context.Context) error {
	class := gen.StorageClass(classOf(slowWait), cluster.ProvisionerName, gen.Parameter("delay", slowWait.String()))
	if _, err := w.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := w.client.ResourceV1().DeviceClasses().Create(ctx, gen.DeviceClass(slowDriver), metav1.CreateOptions{}); err != nil {
		return err
	}
	var devices []resourcev1.Device
	for i := range resourcev1.ResourceSliceMaxDevices {
		devices = append(devices, slowDevice(i))
	}
	_, err := w.client.ResourceV1().ResourceSlices().Create(ctx, gen.ResourceSlice(slowDriver, slowNode, devices...), metav1.CreateOptions{})
	return err
}

func slowDevice(i int) resourcev1.Device {
	return gen.BoundBy(gen.Device(fmt.Sprintf("nic-%d", i)), attached, "broken")
}

// twoWaits returns the seconds from the creation of each pod until it is bound, in the order of twoWays.
func (w *world) twoWaits(ctx context.Context, round int) ([]float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, slowWait+patience, fmt.Errorf("the pods of round %d are not bound", round))
	defer cancel()
	ns, err := w.namespace(ctx)
	if err != nil {
		return nil, err
	}
	seconds := make([]float64, len(twoWays))
	return seconds, inParallel(ctx, len(twoWays), len(twoWays), func(ctx context.Context, i int) error {
		way, name := twoWays[i], fmt.Sprintf("pod-%d", i)
		scheduler := cluster.DefaultScheduler
		if way.direct {
			scheduler = "unscheduled"
		}
		options := []gen.PodOption{gen.InNamespace(ns), gen.EndsAtOnce(), gen.UsesClaim(name), gen.Scheduler(scheduler)}
		claim := gen.Claim(name, gen.InNamespace(ns), gen.OfClass(classOf(slowWait)))
		if _, err := w.client.CoreV1().PersistentVolumeClaims(ns).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
			return err
		}
		if way.device {
			options = append(options, gen.UsesResourceClaim(name))
			if err := w.claimDevice(ctx, ns, name, round, way.direct); err != nil {
				return err
			}
		}
		began := time.Now()
		pod, err := w.client.CoreV1().Pods(ns).Create(ctx, gen.Pod(name, options...), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if way.device {
			defer time.AfterFunc(slowWait, func() { _ = w.attach(ctx, ns, name) }).Stop() // The pod is not bound if this fails.
		}
		if way.direct {
			if err := w.client.CoreV1().Pods(ns).Bind(ctx, gen.Binding(pod, slowNode), metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		err = wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			pod, err = w.client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
			return err == nil && pod.Spec.NodeName != "", err
		})
		seconds[i] = time.Since(began).Seconds()
		return err
	})
}

// claimDevice creates a ResourceClaim. If no scheduler allocates it, it allocates the last device that is free: kube-scheduler
// allocates the first one.
func (w *world) claimDevice(ctx context.Context, ns, name string, round int, allocate bool) error {
	device := slowDevice(resourcev1.ResourceSliceMaxDevices - 1 - round)
	claim := gen.ResourceClaim(name, gen.InNamespace(ns), gen.RequestsDevices(slowDriver, 1), gen.AllocatedFor(slowNode, slowDriver, device))
	created, err := w.client.ResourceV1().ResourceClaims(ns).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil || !allocate {
		return err
	}
	created.Status = claim.Status
	_, err = w.client.ResourceV1().ResourceClaims(ns).UpdateStatus(ctx, created, metav1.UpdateOptions{})
	return err
}

// attach reports all devices of the claim as attached.
func (w *world) attach(ctx context.Context, ns, name string) error {
	claims := w.client.ResourceV1().ResourceClaims(ns)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		claim, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			claim.Status.Devices = append(claim.Status.Devices, resourcev1.AllocatedDeviceStatus{
				Driver: r.Driver, Pool: r.Pool, Device: r.Device,
				Conditions: []metav1.Condition{{Type: attached, Status: metav1.ConditionTrue, Reason: "Attached", LastTransitionTime: metav1.Now()}},
			})
		}
		_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		return err
	})
}
