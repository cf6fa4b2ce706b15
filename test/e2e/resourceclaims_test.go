// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// attaching is the time that the test driver needs to make a device ready.
const attaching = 20 * time.Second

// kube-scheduler allocates and reserves the pod's claim before it posts the Binding. Prebind allows the bind immediately and writes no
// objects.
func TestResourceClaimOfTemplate(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	d := b.newDeviceDriver(b.ns + ".example.com")
	d.publish("node-2", gen.Devices("gpu", 2)...)
	b.resourceClaimTemplate("gpus", gen.RequestsDevices(d.name, 2))
	seen := b.watchResourceClaims()

	b.podWith(cluster.DefaultScheduler, gen.UsesResourceClaimTemplate("gpus"))
	pod := b.untilBound()
	assert.Equal(t, "node-2", pod.Spec.NodeName, "where the devices are")
	b.assertTopology(pod)
	b.assertNeverFailed()
	assert.Equal(t, []string{"allowed"}, b.decisions())
	assert.NotContains(t, pod.Annotations, attemptKey, "kube-scheduler has completed the preparation")

	claims := b.resourceClaims()
	require.Len(t, claims, 1)
	b.assertReserved(claims[0].Name, pod)
	for _, claim := range seen.upTo(b, claims[0]) {
		assert.Empty(t, marksOn(claim), "the claim should have no marks")
		assert.False(t, writtenByPrebind(claim), "Prebind should not write the claim")
	}
}

// Prebind starts no attempt and no call is repeated, even if Prebind's cache is outdated.
func TestResourceClaimsOfManyTemplates(t *testing.T) {
	t.Parallel()
	const pods = 60
	b := newBench(t, shared, nil)
	d := b.newDeviceDriver(b.ns + ".example.com")
	d.publish("", gen.Devices("net", pods)...)
	b.resourceClaimTemplate("net", gen.RequestsDevices(d.name, 1))
	for i := range pods {
		_, err := b.createPod(fmt.Sprintf("pod-%d", i), cluster.DefaultScheduler, gen.UsesResourceClaimTemplate("net"))
		require.NoError(t, err)
	}
	for _, pod := range b.untilPodsBound(pods) {
		assert.NotContains(t, pod.Annotations, attemptKey, "kube-scheduler has completed the preparation")
	}
	for _, said := range b.decisions() {
		assert.Equal(t, "allowed", said)
	}
	for _, claim := range b.resourceClaims() {
		assert.Empty(t, marksOn(claim))
		assert.False(t, writtenByPrebind(claim), "Prebind should not write the claim")
	}
}

// If a device needs time until the node can use it, Prebind binds the pod when the driver reports the device as ready.
func TestBindingConditionsBecomeTrue(t *testing.T) {
	t.Parallel()
	shared.needs(t, bindingConditions)
	slow := gen.BoundBy(gen.Device("nic-0"), attached, broken)

	// This scheduler does not support ResourceClaims. The test allocates the claim.
	t.Run("by hand", func(t *testing.T) {
		t.Parallel()
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
		require.NoError(t, b.end(bound), "the repeats of client-go should be sufficient")

		pod = b.untilBound()
		assert.Equal(t, "node-3", pod.Spec.NodeName)
		d.assertReadyBefore(pod)
		b.assertReserved(slowClaim, pod)
		b.untilUnmarked(slowClaim)
		b.assertWaited()
		assert.NotEmpty(t, pod.Annotations[attemptKey])
	})

	// kube-scheduler waits itself.
	t.Run("kube-scheduler", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, shared, nil)
		d := b.newDeviceDriver(b.ns + ".example.com")
		d.publish("node-4", slow)
		b.resourceClaim(slowClaim, gen.RequestsDevices(d.name, 1))
		seen := b.watchResourceClaims()
		b.podWith(cluster.DefaultScheduler, gen.UsesResourceClaim(slowClaim))
		b.untilResourceClaim(slowClaim, "allocated", allocated)
		d.readyAfter(attaching)

		pod := b.untilBound()
		d.assertReadyBefore(pod)
		b.assertNeverFailed()
		assert.Equal(t, []string{"allowed"}, b.decisions())
		for _, claim := range seen.upTo(b, b.assertReserved(slowClaim, pod)) {
			assert.False(t, writtenByPrebind(claim), "Prebind should not write the claim")
		}
	})

	// Both wait for the same claim.
	t.Run("kube-scheduler and by hand", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, shared, nil)
		d := b.newDeviceDriver(b.ns + ".example.com")
		d.publish("node-5", slow)
		b.resourceClaim(slowClaim, gen.RequestsDevices(d.name, 1))
		scheduled, err := b.createPod("scheduled", cluster.DefaultScheduler, gen.UsesResourceClaim(slowClaim))
		require.NoError(t, err)
		b.untilResourceClaim(slowClaim, "allocated", allocated)
		pod := b.podWith(byHand, gen.UsesResourceClaim(slowClaim))
		bound := b.beginBind("node-5")
		b.untilResourceClaim(slowClaim, "reserved for both", reservedOnceFor(scheduled, pod))
		d.readyAfter(attaching)
		require.NoError(t, b.end(bound))
		for _, pod := range b.untilPodsBound(2) {
			assert.Equal(t, "node-5", pod.Spec.NodeName)
			d.assertReadyBefore(pod)
		}
		b.untilUnmarked(slowClaim)
		b.assertReserved(slowClaim, scheduled, pod)
		b.assertNeverFailed()
	})
}

// The driver reports that the device cannot become ready.
func TestBindingConditionsFail(t *testing.T) {
	t.Parallel()
	shared.needs(t, bindingConditions)
	doomed := gen.BoundBy(gen.Device("nic-0"), attached, broken)

	t.Run("by hand", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, shared, nil)
		d := b.newDeviceDriver(b.ns + ".example.com")
		d.publish("node-3", doomed)
		b.resourceClaim(slowClaim, gen.RequestsDevices(d.name, 1), gen.AllocatedFor("node-3", d.name, doomed))
		pod := b.podWith(byHand, gen.UsesResourceClaim(slowClaim))
		bound := b.beginBind("node-3")
		b.untilResourceClaim(slowClaim, "reserved", reservedOnceFor(pod))
		d.report(broken, "CableLoose", "no link at port 7")
		err := b.end(bound)
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		for _, words := range []string{"resource-claims", b.ns + "/nic", d.name + "/node-3/nic-0", "broken", "CableLoose", "no link at port 7"} {
			assert.ErrorContains(t, err, words)
		}
		b.untilEvent("BindRefused", "CableLoose", "no link at port 7")
		claim := b.untilResourceClaim(slowClaim, "released", released)
		assert.NotNil(t, claim.Status.Allocation, "the allocation should not belong to Prebind")
		b.untilEvent("PreBindRolledBack", "node-3")
		assert.Empty(t, b.until("still unbound", notBound).Spec.NodeName)

		// The next call fails immediately.
		err = b.bindByHand(b.binding("node-3"))
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		assert.ErrorContains(t, err, "CableLoose")
		b.untilResourceClaim(slowClaim, "released", released)
	})

	// As in kube-scheduler, the pod needs another device. The driver must withdraw the broken one.
	t.Run("kube-scheduler", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, shared, nil)
		d := b.newDeviceDriver(b.ns + ".example.com")
		d.publish("node-3", doomed)
		b.resourceClaim(slowClaim, gen.RequestsDevices(d.name, 1))
		b.podWith(cluster.DefaultScheduler, gen.UsesResourceClaim(slowClaim))
		b.untilResourceClaim(slowClaim, "allocated", allocated)
		d.publish("node-4", gen.BoundBy(gen.Device("nic-1"), attached, broken))
		d.withdraw("node-3")
		d.report(broken, "CableLoose", "no link at port 7")
		b.untilResourceClaim(slowClaim, "allocated again", func(claim *resourcev1.ResourceClaim) bool {
			return allocated(claim) && claim.Status.Allocation.Devices.Results[0].Device == "nic-1"
		})
		d.report(attached, "Attached", "")
		pod := b.untilBound()
		assert.Equal(t, "node-4", pod.Spec.NodeName)
		b.assertReserved(slowClaim, pod)
		assert.Equal(t, []string{"allowed"}, b.decisions(), "it is bound once, to the node that works")
		b.assertUnmarked(slowClaim)
	})
}

// The wait for a claim ends when the claim is deleted.
func TestResourceClaimDeletedWhileWaiting(t *testing.T) {
	t.Parallel()
	shared.needs(t, bindingConditions)
	b := newBench(t, shared, nil)
	slow := gen.BoundBy(gen.Device("nic-0"), attached, broken)
	b.resourceClaim(slowClaim, gen.RequestsDevices("none.example.com", 1), gen.AllocatedFor("node-3", "none.example.com", slow))
	pod := b.podWith(byHand, gen.UsesResourceClaim(slowClaim))
	bound := b.beginBind("node-3")
	b.untilResourceClaim(slowClaim, "reserved", reservedOnceFor(pod))
	require.NoError(t, b.client.ResourceV1().ResourceClaims(b.ns).Delete(t.Context(), slowClaim, metav1.DeleteOptions{}))
	err := b.end(bound)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "ResourceClaim "+b.ns+"/nic")
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
	b.untilPodsBound(1)
	before := b.assertReserved("gpu", first)

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

// kube-controller-manager creates the claim of a template after the pod. The bind of a faster scheduler waits.
func TestResourceClaimNotMadeYet(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	// The template does not exist yet, so kube-controller-manager cannot create the claim.
	b.podWith(byHand, gen.UsesResourceClaimTemplate("gpus"))
	bound := b.beginBind("node-1")
	b.untilEvent("WaitingForPreBind", "kube-controller-manager to create the claim", `"gpus"`)
	b.resourceClaimTemplate("gpus", gen.RequestsDevices("none.example.com", 1))
	err := b.end(bound)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	claims := b.resourceClaims()
	require.Len(t, claims, 1)
	assert.ErrorContains(t, err, "ResourceClaim "+b.ns+"/"+claims[0].Name)
	assert.ErrorContains(t, err, "not allocated by the scheduler")
	b.assertWaited()
}

// assertWaited checks that the client got 429 until the last call, which is allowed or rejected.
func (b *bench) assertWaited() {
	b.t.Helper()
	said := b.decisions()
	require.NotEmpty(b.t, said)
	for _, s := range said[:len(said)-1] {
		assert.Equal(b.t, "waiting", s)
	}
	assert.NotEqual(b.t, "waiting", said[len(said)-1])
}

// keptByTest adds a finalizer, so that a deleted object stays.
func keptByTest() gen.Meta {
	return func(m *metav1.ObjectMeta) { m.Finalizers = append(m.Finalizers, "e2e.prebind.dev/kept") }
}
