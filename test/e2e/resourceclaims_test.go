// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// attaching is the time that the test driver needs to make a device ready.
const attaching = 5 * time.Second

// kube-scheduler allocates and reserves the pod's claim before it posts the Binding. Prebind allows the bind immediately and writes no
// objects.
func TestResourceClaimOfTemplate(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	d := b.newDeviceDriver(b.ns + ".example.com")
	d.publish("node-2", gen.Devices("gpu", 2)...)
	b.resourceClaimTemplate("gpus", gen.RequestsDevices(d.name, 2))

	b.podWith(cluster.DefaultScheduler, gen.UsesResourceClaimTemplate("gpus"))
	pod := b.untilBound()
	assert.Equal(t, "node-2", pod.Spec.NodeName, "where the devices are")
	b.assertTopology(pod)
	b.assertNeverFailed()
	assert.Equal(t, []string{"allowed"}, b.decisions())
	assert.NotContains(t, pod.Annotations, attemptKey, "kube-scheduler has completed the preparation")

	claims := b.resourceClaims()
	require.Len(t, claims, 1)
	claim := b.assertReserved(claims[0].Name, pod)
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
	d.readyAfter(attaching)
	require.NoError(t, b.end(bound))

	pod = b.untilBound()
	assert.Equal(t, "node-3", pod.Spec.NodeName)
	d.assertReadyBefore(pod)
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
