// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// The tests in this file run with the real external-provisioner and a CSI driver. The shared driver is csiName, and its nodes are csiA
// in zone-a and csiB in zone-b. It does not run on csiNone. Other pods do not tolerate these nodes.
const (
	csiName            = "e2e.csi.prebind.dev"
	csiA, csiB         = "csi-a", "csi-b"
	csiNone            = "csi-none"
	csiZoneA, csiZoneB = "zone-a", "zone-b"
	csiTaint           = "e2e.prebind.dev/csi"
	csiUnlimited       = "1Pi"
)

// sharedCSI starts the driver with the first test that needs it.
var sharedCSI = sync.OnceValues(func() (*cluster.CSI, error) {
	// The first start on a machine builds it.
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	csi, err := shared.cluster.StartCSI(ctx, csiName)
	if err != nil {
		return nil, err
	}
	var nodes []*corev1.Node
	for _, name := range []string{csiA, csiB, csiNone} {
		nodes = append(nodes, cluster.Node(name, cluster.WithTaints(corev1.Taint{Key: csiTaint, Effect: corev1.TaintEffectNoSchedule})))
	}
	if err := cluster.CreateNodes(ctx, shared.client, nodes...); err != nil {
		return nil, err
	}
	for node, zone := range map[string]string{csiA: csiZoneA, csiB: csiZoneB} {
		if err := csi.Register(ctx, node, zone); err != nil {
			return nil, err
		}
	}
	return csi, nil
})

// csiBench is a bench with the shared driver.
type csiBench struct {
	*bench
	csi *cluster.CSI
}

func newCSIBench(t *testing.T) *csiBench {
	t.Helper()
	csi, err := sharedCSI()
	require.NoError(t, err)
	return &csiBench{bench: newBench(t, shared, nil), csi: csi}
}

// lateClass creates a WaitForFirstConsumer class of the driver with a pool of its own. It returns after the provisioner has published the
// capacity of the zones.
func (b *csiBench) lateClass(zoneA, zoneB string, options ...gen.ClassOption) string {
	b.t.Helper()
	class := b.class(csiName, append([]gen.ClassOption{gen.Parameter("pool", b.ns)}, options...)...)
	b.untilPublished(class, zoneA, zoneB)
	return class
}

// zonesHave sets the capacities of the two zones. That of zone B is 8Gi.
func zonesHave(zoneA string) gen.ClassOption {
	return gen.Parameter("capacity", csiZoneA+"="+zoneA+","+csiZoneB+"=8Gi")
}

// untilPublished waits until the CSIStorageCapacity objects of the class have these capacities.
func (b *csiBench) untilPublished(class, zoneA, zoneB string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		list, err := b.client.StorageV1().CSIStorageCapacities(metav1.NamespaceAll).List(b.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		got := map[string]string{}
		for _, capacity := range list.Items {
			if capacity.StorageClassName == class {
				got[capacity.NodeTopology.MatchLabels[cluster.CSITopologyKey]] = capacity.Capacity.String()
			}
		}
		assert.Equal(c, map[string]string{csiZoneA: zoneA, csiZoneB: zoneB}, got)
	}, patience, 50*time.Millisecond, "the provisioner should publish the capacity of StorageClass %s", class)
}

// sized creates a claim of this size.
func (b *csiBench) sized(name, class, size string) {
	b.t.Helper()
	claim := gen.Claim(name, gen.InNamespace(b.ns), gen.OfClass(class), gen.Requests(size))
	_, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Create(b.t.Context(), claim, metav1.CreateOptions{})
	require.NoError(b.t, err)
}

// newPod creates a pod that tolerates the nodes of the driver.
func (b *csiBench) newPod(name, scheduler, claim string, options ...gen.PodOption) {
	b.t.Helper()
	_, err := b.createPod(name, scheduler, append(options, gen.UsesClaim(claim), gen.Tolerates(csiTaint))...)
	require.NoError(b.t, err)
}

// bindPod posts a Binding of the pod.
func (b *csiBench) bindPod(name, node string) error {
	return b.bindByHand(gen.Binding(gen.Pod(name, gen.InNamespace(b.ns)), node))
}

// remove deletes the pod and the claim.
func (b *csiBench) remove(pod, claim string) {
	b.t.Helper()
	require.NoError(b.t, b.client.CoreV1().Pods(b.ns).Delete(b.t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	require.NoError(b.t, b.client.CoreV1().PersistentVolumeClaims(b.ns).Delete(b.t.Context(), claim, metav1.DeleteOptions{}))
}

// stored returns the driver's volumes of the test.
func (b *csiBench) stored(t require.TestingT) []cluster.CSIVolume {
	volumes, err := b.csi.Volumes(b.t.Context())
	require.NoError(t, err)
	return slices.DeleteFunc(volumes, func(v cluster.CSIVolume) bool { return !strings.HasPrefix(v.Claim, b.ns+"/") })
}

// assertStored checks that the claim is bound to the only volume of the driver for the test, and that the volume is in the zone of csiB.
func (b *csiBench) assertStored(claim string) {
	b.t.Helper()
	bound := b.assertClaimBound(claim, csiB)
	volumes := b.stored(b.t)
	if assert.Len(b.t, volumes, 1) {
		assert.Equal(b.t, bound.Spec.VolumeName, volumes[0].Name)
		assert.Equal(b.t, b.ns+"/"+claim, volumes[0].Claim)
		assert.Equal(b.t, csiZoneB, volumes[0].Zone)
		assert.False(b.t, volumes[0].Pending)
	}
}

// untilNoneStored waits until no volume of the test is left, neither in the driver nor as PersistentVolume.
func (b *csiBench) untilNoneStored() {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		assert.Empty(c, b.stored(c))
		list, err := b.client.CoreV1().PersistentVolumes().List(b.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		for _, pv := range list.Items {
			assert.False(c, pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Namespace == b.ns, "%s", pv.Name)
		}
	}, patience, 100*time.Millisecond, "no volume should be leaked")
}

// untilAnyEvent waits for an event of any object of the test.
func (b *csiBench) untilAnyEvent(words ...string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		assert.True(c, says(b.allEvents(), words...), "no event says %q: %q", words, b.allEvents())
	}, patience, 50*time.Millisecond)
}

// assertForbidden checks that Prebind's volumebinding has rejected the bind because of the claim.
func (b *csiBench) assertForbidden(err error, claim string, words ...string) {
	b.t.Helper()
	require.True(b.t, apierrors.IsForbidden(err), "the request should be rejected: %v", err)
	for _, w := range append(words, "volumebinding: PersistentVolumeClaim "+b.ns+"/"+claim+": ") {
		assert.ErrorContains(b.t, err, w)
	}
}

// The provisioner creates the volume in the zone of the node.
func TestCSIProvisioning(t *testing.T) {
	t.Parallel()
	b := newCSIBench(t)
	b.claim("data", b.lateClass(csiUnlimited, csiUnlimited, gen.Parameter("delay", "3s")))
	b.newPod("pod", cluster.NoPreBindScheduler, "data", b.steered())
	b.allow(csiB)
	pod := b.untilBound()
	assert.Equal(t, csiB, pod.Spec.NodeName)
	b.assertTopology(pod)
	b.assertStored("data")
	claim := b.assertClaimBound("data", csiB)
	assert.Equal(t, csiB, claim.Annotations[volume.AnnSelectedNode])
	said := b.decisions()
	assert.Equal(t, "allowed", said[len(said)-1])
}

// If the driver has no storage in the zone, the provisioner removes selected-node, and the pod gets another node.
func TestCSIResourceExhausted(t *testing.T) {
	t.Parallel()
	b := newCSIBench(t)
	b.claim("data", b.lateClass(csiUnlimited, csiUnlimited, gen.Parameter("delay", "1s"), gen.Parameter("failZones", csiZoneA)))
	b.newPod("pod", byHand, "data")
	b.assertForbidden(b.bindPod("pod", csiA), "data", "the provisioner failed on node "+csiA+" and requests another node")
	claim, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Get(t.Context(), "data", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotContains(t, claim.Annotations, volume.AnnSelectedNode)
	assert.Empty(t, b.stored(t))
	require.NoError(t, b.bindPod("pod", csiB))
	b.assertTopology(b.untilBound())
	b.assertStored("data")
}

// The creation of a volume continues after a timeout of the provisioner's call, and the next call returns the volume. The bind waits for
// it, or ends if the claim is deleted in the meantime. Then the provisioner deletes the volume.
func TestCSITimeout(t *testing.T) {
	t.Parallel()
	b := newCSIBench(t)
	class := b.lateClass(csiUnlimited, csiUnlimited, gen.Parameter("delay", "7s"))
	b.claim("data", class)
	b.newPod("pod", byHand, "data")
	first := b.beginBind(csiA)
	b.untilAnyEvent("DeadlineExceeded")
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Len(c, b.stored(c), 1) }, patience, 50*time.Millisecond,
		"the driver should create the volume between two calls")
	require.NoError(t, b.client.CoreV1().PersistentVolumeClaims(b.ns).Delete(t.Context(), "data", metav1.DeleteOptions{}))
	err := b.end(first)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, b.ns+"/data")
	b.untilNoneStored()

	b.claim("data", class)
	require.NoError(t, b.bindPod("pod", csiB))
	b.assertStored("data")
}

// Prebind checks the capacity that the provisioner publishes, which changes with each volume.
func TestCSICapacity(t *testing.T) {
	t.Parallel()
	b := newCSIBench(t)
	class := b.lateClass("1Gi", "8Gi", zonesHave("1Gi"))
	b.sized("first", class, "5Gi")
	b.sized("second", class, "4Gi")
	for _, name := range []string{"first", "second"} {
		b.newPod(name, byHand, name)
	}
	less := func(size, node string) string {
		return "CSI driver " + csiName + " reports less than " + size + " of storage in StorageClass " + class + " for node " + node
	}
	b.assertForbidden(b.bindPod("first", csiA), "first", less("5Gi", csiA))
	b.assertForbidden(b.bindPod("first", csiNone), "first", "reports no storage of StorageClass "+class+" for node "+csiNone)
	b.assertUnbound("first", "a rejected bind should not request a volume")
	require.NoError(t, b.bindPod("first", csiB))
	b.assertStored("first")

	b.untilPublished(class, "1Gi", "3Gi")
	b.assertForbidden(b.bindPod("second", csiB), "second", less("4Gi", csiB))
	b.remove("first", "first")
	b.untilPublished(class, "1Gi", "8Gi")
	require.NoError(t, b.bindPod("second", csiB))
	b.assertStored("second")
	b.remove("second", "second")
	b.untilNoneStored()
}
