// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// kube-scheduler allocates and reserves the pod's claim before it posts the Binding. Prebind allows the bind immediately and writes no
// objects.
func TestResourceClaimOfTemplate(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	d := b.newDeviceDriver(b.ns + ".example.com")
	d.publish("node-2", gen.Devices("gpu", 2)...)
	template := gen.ResourceClaimTemplate("gpus", gen.InNamespace(b.ns), gen.RequestsDevices(d.name, 2))
	_, err := b.client.ResourceV1().ResourceClaimTemplates(b.ns).Create(t.Context(), template, metav1.CreateOptions{})
	require.NoError(t, err)

	b.podWith(cluster.DefaultScheduler, gen.UsesResourceClaimTemplate("gpus"))
	pod := b.untilBound()
	assert.Equal(t, "node-2", pod.Spec.NodeName, "where the devices are")
	b.assertTopology(pod)
	b.assertNeverFailed()
	assert.Equal(t, []string{"allowed"}, b.decisions())
	assert.NotContains(t, pod.Annotations, attemptKey, "kube-scheduler has completed the preparation")

	claims, err := b.client.ResourceV1().ResourceClaims(b.ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, claims.Items, 1)
	claim := b.assertReserved(claims.Items[0].Name, pod)
	assert.Empty(t, marksOn(claim), "the claim should have no marks")
	assert.False(t, writtenByPrebind(claim), "Prebind should not write the claim")
}

// If a device needs time until the node can use it, Prebind binds the pod when the driver reports the device as ready. The scheduler does
// not support ResourceClaims. The test allocates the claim.
func TestBindingConditionsBecomeTrue(t *testing.T) {
	t.Parallel()
	shared.needs(t, bindingConditions)
	slow := gen.BoundBy(gen.Device("nic-0"), attached, broken)
	b := newBench(t, shared, nil)
	d := b.newDeviceDriver(b.ns + ".example.com")
	d.publish("node-3", slow)
	b.resourceClaim(slowClaim, gen.RequestsDevices(d.name, 1), gen.AllocatedFor("node-3", d.name, slow))
	pod := b.podWith(byHand, gen.UsesResourceClaim(slowClaim))
	bound := b.beginBind("node-3")
	claim := b.untilResourceClaim(slowClaim, "reserved", reservedOnceFor(pod))
	assert.Contains(t, marksOn(claim), string(pod.UID), "the reservation should have a mark for a rollback")
	b.untilEvent("WaitingForPreBind", "ResourceClaim "+b.ns+"/nic", "condition attached", d.name+"/node-3/nic-0")
	b.assertNotBound()
	d.attach()
	require.NoError(t, b.end(bound))

	pod = b.untilBound()
	assert.Equal(t, "node-3", pod.Spec.NodeName)
	b.assertReserved(slowClaim, pod)
	b.untilUnmarked(slowClaim)
	assert.NotEmpty(t, pod.Annotations[attemptKey])
}

// A scheduler without support for ResourceClaims binds a pod whose claim another scheduler has allocated. Prebind reserves the claim.
func TestAllocatedResourceClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	d := b.newDeviceDriver(b.ns + ".example.com")
	d.publish("node-2", gen.Device("gpu-0"))
	b.resourceClaim("gpu", gen.RequestsDevices(d.name, 1))
	first, err := b.createPod("first", cluster.DefaultScheduler, gen.UsesResourceClaim("gpu"))
	require.NoError(t, err)
	before := b.untilResourceClaim("gpu", "reserved", reservedOnceFor(first))

	pod := b.podWith(byHand, gen.UsesResourceClaim("gpu"))
	err = b.bindByHand(b.binding("node-3"))
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	for _, words := range []string{"resource-claims", b.ns + "/gpu", "node-3", "a node that its allocation selects"} {
		assert.ErrorContains(t, err, words)
	}
	require.NoError(t, b.bindByHand(b.binding("node-2")))
	bound := b.untilBound()
	b.assertTopology(bound)
	assert.NotEmpty(t, bound.Annotations[attemptKey])
	after := b.assertReserved("gpu", first, pod)
	assert.Equal(t, before.Status.Allocation, after.Status.Allocation)
	assert.True(t, writtenByPrebind(after), "Prebind should have written the reservation")
	b.untilUnmarked("gpu")
	b.assertReserved("gpu", first, pod)
}

// deviceDriver acts like a DRA driver: it publishes devices, and sets the conditions of claims. Its DeviceClass has its name.
type deviceDriver struct {
	*bench
	name string
}

func (b *bench) newDeviceDriver(name string) *deviceDriver {
	b.t.Helper()
	_, err := b.client.ResourceV1().DeviceClasses().Create(b.t.Context(), gen.DeviceClass(name), metav1.CreateOptions{})
	require.NoError(b.t, err)
	return &deviceDriver{bench: b, name: name}
}

// publish creates the node's pool. An empty node means a pool for all nodes.
func (d *deviceDriver) publish(node string, devices ...resourcev1.Device) {
	d.t.Helper()
	_, err := d.client.ResourceV1().ResourceSlices().Create(d.t.Context(), gen.ResourceSlice(d.name, node, devices...), metav1.CreateOptions{})
	require.NoError(d.t, err)
}

// slowClaim is a claim whose devices need time. A condition reports success or failure.
const (
	slowClaim = "nic"
	attached  = "attached"
	broken    = "broken"
)

// attach reports the devices as attached.
func (d *deviceDriver) attach() {
	d.t.Helper()
	claims, ctx := d.client.ResourceV1().ResourceClaims(d.ns), d.t.Context()
	require.NoError(d.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		stored, err := claims.Get(ctx, slowClaim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, r := range stored.Status.Allocation.Devices.Results {
			stored.Status.Devices = append(stored.Status.Devices, resourcev1.AllocatedDeviceStatus{
				Driver: r.Driver, Pool: r.Pool, Device: r.Device,
				Conditions: []metav1.Condition{{Type: attached, Status: metav1.ConditionTrue, Reason: "Attached", LastTransitionTime: metav1.Now()}},
			})
		}
		_, err = claims.UpdateStatus(ctx, stored, metav1.UpdateOptions{})
		return err
	}))
}

// resourceClaim creates a claim. If the options set a status, it writes the status like a scheduler.
func (b *bench) resourceClaim(name string, options ...gen.ResourceClaimOption) {
	b.t.Helper()
	claims := b.client.ResourceV1().ResourceClaims(b.ns)
	wanted := gen.ResourceClaim(name, append(options, gen.InNamespace(b.ns))...)
	claim, err := claims.Create(b.t.Context(), wanted, metav1.CreateOptions{})
	require.NoError(b.t, err)
	if wanted.Status.Allocation != nil {
		claim.Status = wanted.Status
		_, err = claims.UpdateStatus(b.t.Context(), claim, metav1.UpdateOptions{FieldManager: "some-scheduler"})
		require.NoError(b.t, err)
	}
}

// untilResourceClaim reads the claim until the condition holds, and returns it.
func (b *bench) untilResourceClaim(name, what string, condition func(*resourcev1.ResourceClaim) bool) *resourcev1.ResourceClaim {
	b.t.Helper()
	return untilRead(b, b.client.ResourceV1().ResourceClaims(b.ns).Get, name, what, condition)
}

// reservedOnceFor reports whether the claim is reserved once for each of the pods, and for no others.
func reservedOnceFor(pods ...*corev1.Pod) func(*resourcev1.ResourceClaim) bool {
	var want []string
	for _, pod := range pods {
		want = append(want, string(pod.UID))
	}
	slices.Sort(want)
	return func(claim *resourcev1.ResourceClaim) bool {
		var uids []string
		for _, r := range claim.Status.ReservedFor {
			uids = append(uids, string(r.UID))
		}
		slices.Sort(uids)
		return slices.Equal(want, uids)
	}
}

// markPrefix is the prefix of the annotations with which Prebind marks claims.
const markPrefix = "resource-claims.prebind.dev/"

// marksOn returns the UIDs of the pods that have marked the claim.
func marksOn(claim *resourcev1.ResourceClaim) []string {
	var uids []string
	for key := range claim.Annotations {
		if rest, ok := strings.CutPrefix(key, markPrefix); ok {
			uid, _, _ := strings.Cut(rest, ".")
			uids = append(uids, uid)
		}
	}
	return uids
}

// writtenByPrebind reports whether Prebind manages any field of the claim.
func writtenByPrebind(claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return strings.HasPrefix(m.Manager, "prebind") })
}

// assertReserved checks that the claim is allocated, and reserved once for each of the pods and for no others.
func (b *bench) assertReserved(claim string, pods ...*corev1.Pod) *resourcev1.ResourceClaim {
	b.t.Helper()
	stored, err := b.client.ResourceV1().ResourceClaims(b.ns).Get(b.t.Context(), claim, metav1.GetOptions{})
	require.NoError(b.t, err)
	assert.NotNil(b.t, stored.Status.Allocation, "the claim %s should be allocated", claim)
	assert.True(b.t, reservedOnceFor(pods...)(stored), "the claim %s should be reserved once for each of %d pods: %v", claim, len(pods), stored.Status.ReservedFor)
	return stored
}

// untilUnmarked waits until Prebind has removed its marks.
func (b *bench) untilUnmarked(claim string) {
	b.t.Helper()
	b.untilResourceClaim(claim, "unmarked", func(claim *resourcev1.ResourceClaim) bool { return len(marksOn(claim)) == 0 })
}
