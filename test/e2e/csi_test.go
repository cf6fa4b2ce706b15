// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
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

// A CSI driver and its nodes: csiA in zone-a and csiB in zone-b. It does not run on csiNone. Other pods do not tolerate these nodes.
const (
	csiName            = "e2e.csi.prebind.dev"
	csiA, csiB         = "csi-a", "csi-b"
	csiNone            = "csi-none"
	csiZoneA, csiZoneB = "zone-a", "zone-b"
	csiTaint           = "e2e.prebind.dev/csi"
)

// startCSI starts the driver and the real external-provisioner, and creates the nodes. Zone A has 1Gi, and zone B 8Gi.
func startCSI(t *testing.T) {
	t.Helper()
	// The first start on a machine builds it.
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	csi, err := shared.cluster.StartCSI(ctx, csiName, map[string]int64{csiZoneA: 1 << 30, csiZoneB: 8 << 30})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, csi.Stop())
		if t.Failed() {
			t.Log(csi.Provisioner.Tail(60))
		}
	})
	var nodes []*corev1.Node
	for _, name := range []string{csiA, csiB, csiNone} {
		nodes = append(nodes, cluster.Node(name, cluster.WithTaints(corev1.Taint{Key: csiTaint, Effect: corev1.TaintEffectNoSchedule})))
	}
	require.NoError(t, cluster.CreateNodes(ctx, shared.client, nodes...))
	for node, zone := range map[string]string{csiA: csiZoneA, csiB: csiZoneB} {
		require.NoError(t, csi.Register(ctx, node, zone))
	}
}

// untilPublished waits until the CSIStorageCapacity objects of the class say 1Gi for zone A and this capacity for zone B.
func (b *bench) untilPublished(class, zoneB string) {
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
		assert.Equal(c, map[string]string{csiZoneA: "1Gi", csiZoneB: zoneB}, got)
	}, patience, 50*time.Millisecond, "the provisioner should publish the capacity of StorageClass %s", class)
}

// csiPod creates a claim of this size, and a pod with the claim that tolerates the nodes of the driver. Both have this name.
func (b *bench) csiPod(name, class, size string) {
	b.t.Helper()
	claim := gen.Claim(name, gen.InNamespace(b.ns), gen.OfClass(class), gen.Requests(size))
	_, err := b.client.CoreV1().PersistentVolumeClaims(b.ns).Create(b.t.Context(), claim, metav1.CreateOptions{})
	require.NoError(b.t, err)
	_, err = b.createPod(name, byHand, gen.UsesClaim(name), gen.Tolerates(csiTaint))
	require.NoError(b.t, err)
}

// bindCSI posts a Binding of the pod.
func (b *bench) bindCSI(name, node string) error {
	return b.bindByHand(gen.Binding(gen.Pod(name, gen.InNamespace(b.ns)), node))
}

// remove deletes the pod and its claim. The provisioner deletes the volume then.
func (b *bench) remove(name string) {
	b.t.Helper()
	require.NoError(b.t, b.client.CoreV1().Pods(b.ns).Delete(b.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	require.NoError(b.t, b.client.CoreV1().PersistentVolumeClaims(b.ns).Delete(b.t.Context(), name, metav1.DeleteOptions{}))
}

// assertForbidden checks that Prebind's volumebinding has rejected the bind because of the claim.
func (b *bench) assertForbidden(err error, claim, words string) {
	b.t.Helper()
	require.True(b.t, apierrors.IsForbidden(err), "the request should be rejected: %v", err)
	assert.ErrorContains(b.t, err, "volumebinding: PersistentVolumeClaim "+b.ns+"/"+claim+": ")
	assert.ErrorContains(b.t, err, words)
}

// The real external-provisioner provisions volumes for binds. If the driver has no storage in the zone, the provisioner removes
// selected-node, and the pod gets another node. Prebind checks the capacity that the provisioner publishes, which changes with each volume.
func TestCSI(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	startCSI(t)

	exhausted := b.class(csiName, gen.Parameter("failZone", csiZoneA))
	b.untilPublished(exhausted, "8Gi")
	b.csiPod("moved", exhausted, "1Gi")
	b.assertForbidden(b.bindCSI("moved", csiA), "moved", "its selected-node is not node "+csiA+" any more: the provisioner requests another node")
	assert.NotContains(t, b.getClaim("moved").Annotations, volume.AnnSelectedNode)
	require.NoError(t, b.bindCSI("moved", csiB))
	b.assertClaimBound("moved", csiB)
	b.remove("moved")

	class := b.class(csiName)
	b.untilPublished(class, "8Gi")
	b.csiPod("first", class, "5Gi")
	b.csiPod("second", class, "4Gi")
	less := func(size, node string) string {
		return "CSI driver " + csiName + " reports less than " + size + " of storage in StorageClass " + class + " for node " + node
	}
	b.assertForbidden(b.bindCSI("first", csiA), "first", less("5Gi", csiA))
	b.assertForbidden(b.bindCSI("first", csiNone), "first", "reports no storage of StorageClass "+class+" for node "+csiNone)
	assert.Empty(t, b.getClaim("first").Spec.VolumeName, "a rejected bind should not request a volume")
	require.NoError(t, b.bindCSI("first", csiB))
	b.assertClaimBound("first", csiB)
	b.untilPublished(class, "3Gi")
	b.assertForbidden(b.bindCSI("second", csiB), "second", less("4Gi", csiB))
	b.remove("first")
	b.untilPublished(class, "8Gi")
	require.NoError(t, b.bindCSI("second", csiB))
	b.assertClaimBound("second", csiB)
}
