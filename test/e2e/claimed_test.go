// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// installDevices publishes n devices in the pool of the node, like a driver. The names start with gpu-0. The DeviceClass has the
// name of the driver.
func (w *world) installDevices(t *testing.T, driver, node string, n int) {
	t.Helper()
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "` + driver + `"`},
		}}},
	}
	_, err := w.client.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{})
	require.NoError(t, err)
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + driver},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	for i := range n {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: "gpu-" + strconv.Itoa(i)})
	}
	_, err = w.client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{})
	require.NoError(t, err)
}

// deviceClaim creates a claim with the request gpu for two devices, and the request nic for a device of one of two kinds.
func (b *bench) deviceClaim(name, class string) *resourcev1.ResourceClaim {
	b.t.Helper()
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{
		{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, Count: 2}},
		{Name: "nic", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "fast", DeviceClassName: class}, {Name: "slow", DeviceClassName: class}}},
	}
	claim, err := b.client.ResourceV1().ResourceClaims(b.ns).Create(b.t.Context(), claim, metav1.CreateOptions{})
	require.NoError(b.t, err)
	return claim
}

// allocate allocates a claim like a scheduler, for pods that the test binds by hand.
func (b *bench) allocate(claim *resourcev1.ResourceClaim, driver, pool string) {
	b.t.Helper()
	result := func(request, device string) resourcev1.DeviceRequestAllocationResult {
		return resourcev1.DeviceRequestAllocationResult{Request: request, Driver: driver, Pool: pool, Device: device}
	}
	claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		result("gpu", "gpu-3"), result("nic/slow", "gpu-2"), result("gpu", "gpu-0"),
	}}}
	_, err := b.client.ResourceV1().ResourceClaims(b.ns).UpdateStatus(b.t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(b.t, err)
}

// devicesOf returns the expected annotations of a pod with the claim, according to the claim's status.
func (b *bench) devicesOf(claim, name string) map[string]string {
	b.t.Helper()
	stored, err := b.client.ResourceV1().ResourceClaims(b.ns).Get(b.t.Context(), claim, metav1.GetOptions{})
	require.NoError(b.t, err)
	require.NotNil(b.t, stored.Status.Allocation, "the claim %s should be allocated", claim)
	byRequest := map[string][]string{}
	for _, r := range stored.Status.Allocation.Devices.Results {
		key := deviceInfo + name + "." + strings.ReplaceAll(r.Request, "/", ".")
		byRequest[key] = append(byRequest[key], r.Driver+"/"+r.Pool+"/"+r.Device)
	}
	out := map[string]string{}
	for key, devices := range byRequest {
		out[key] = strings.Join(devices, ",")
	}
	return out
}

// devices returns the devices in the pod's annotations.
func devices(pod *corev1.Pod) map[string]string {
	told := maps.Clone(pod.Annotations)
	maps.DeleteFunc(told, func(key, _ string) bool { return !strings.HasPrefix(key, deviceInfo) })
	return told
}

// uses adds the claims to a pod. The map contains the name of the claim by its name in the pod.
func uses(claims map[string]string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, name := range slices.Sorted(maps.Keys(claims)) {
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: new(claims[name])})
			pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: name})
		}
	}
}

// A bound pod has annotations with the devices of its ResourceClaims.
func testClaimedDevices(t *testing.T, w *world) {
	t.Run("kube-scheduler", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, w, nil)
		driver := b.ns + ".example.com"
		b.installDevices(t, driver, "node-2", 4)
		b.deviceClaim("claim", driver)
		b.changed(cluster.DefaultScheduler, uses(map[string]string{"accel": "claim"}))
		pod := b.untilBound()
		assert.Equal(t, "node-2", pod.Spec.NodeName, "where the devices are")
		want := b.devicesOf("claim", "accel")
		assert.Equal(t, want, devices(pod))
		assert.Equal(t, 1, strings.Count(want[deviceInfo+"accel.gpu"], ","), "two devices: %v", want)
		assert.True(t, strings.HasPrefix(want[deviceInfo+"accel.nic.fast"], driver+"/node-2/gpu-"), "one device: %v", want)
		b.assertNeverFailed()
	})

	t.Run("by hand", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, w, nil)
		driver := b.ns + ".example.com"
		b.installDevices(t, driver, "node-3", 4)
		b.allocate(b.deviceClaim("claim", driver), driver, "node-3")
		b.changed(byHand, uses(map[string]string{"accel": "claim"}))
		require.NoError(t, b.bindByHand(b.binding("node-3")))
		want := map[string]string{
			deviceInfo + "accel.gpu":      driver + "/node-3/gpu-3," + driver + "/node-3/gpu-0",
			deviceInfo + "accel.nic.slow": driver + "/node-3/gpu-2",
		}
		require.Equal(t, want, b.devicesOf("claim", "accel"))
		assert.Equal(t, want, devices(b.untilBound()))
	})

	t.Run("some are not allocated", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, w, nil)
		driver := b.ns + ".example.com"
		b.installDevices(t, driver, "node-4", 4)
		b.deviceClaim("pending", driver)
		b.allocate(b.deviceClaim("allocated", driver), driver, "node-4")
		b.changed(byHand, uses(map[string]string{"a": "pending", "b": "allocated", "c": "missing"}))
		require.NoError(t, b.bindByHand(b.binding("node-4")), "Prebind should not handle claims")
		pod := b.untilBound()
		assert.Equal(t, b.devicesOf("allocated", "b"), devices(pod))
		assert.Equal(t, "zone-1", pod.Annotations["topology.prebind.dev/zone"])
		assert.Equal(t, []string{"allowed"}, b.decisions())
	})

	t.Run("none is allocated", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, w, nil)
		b.installDevices(t, b.ns+".example.com", "node-4", 4)
		b.deviceClaim("pending", b.ns+".example.com")
		b.changed(byHand, uses(map[string]string{"a": "pending"}))
		require.NoError(t, b.bindByHand(b.binding("node-4")), "Prebind should not handle claims")
		assert.Empty(t, devices(b.untilBound()))
	})

	t.Run("no claims", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, w, nil)
		b.podWith(byHand, gen.Annotation("example.com/claims", "none"))
		require.NoError(t, b.bindByHand(b.binding("node-5")))
		assert.Empty(t, devices(b.untilBound()))
	})
}
