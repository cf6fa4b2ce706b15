// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
)

// TestStartCSI checks the published capacity, the creation of a volume for a pod of kube-scheduler, and its deletion.
func TestStartCSI(t *testing.T) {
	const driver = "csi.example.com"
	client := clientFor(t, shared.Config())
	csi, err := shared.StartCSI(t.Context(), driver)
	require.NoError(t, err)
	namespace := newNamespace(t, client)
	newNodes(t, client, cluster.Nodes("csi", 2)...)
	require.NoError(t, csi.Register(t.Context(), "csi-1", "zone-a"))
	require.NoError(t, csi.Register(t.Context(), "csi-2", "zone-b"))
	claimName := newClaimOf(t, client, namespace, driver, map[string]string{"capacity": "zone-b=3Gi"})
	class := *getClaim(t, client, namespace, claimName).Spec.StorageClassName

	// free returns the published capacity by zone.
	free := func(ctx context.Context) (map[string]string, error) {
		list, err := client.StorageV1().CSIStorageCapacities(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		out := map[string]string{}
		for _, c := range list.Items {
			if c.StorageClassName == class {
				out[c.NodeTopology.MatchLabels[cluster.CSITopologyKey]] = c.Capacity.String()
			}
		}
		return out, nil
	}
	untilFree := func(want string) {
		t.Helper()
		until(t, "a published capacity of "+want, free, func(got map[string]string) bool {
			return len(got) == 2 && got["zone-a"] == "0" && got["zone-b"] == want
		})
	}
	untilFree("3Gi")
	podName := newPod(t, client, namespace, cluster.DefaultScheduler, claimName)
	assert.Equal(t, "csi-2", untilBound(t, client, namespace, podName).Spec.NodeName, "the node should have storage")
	untilFree("2Gi")
	claim := getClaim(t, client, namespace, claimName)
	volumes, err := csi.Volumes(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []cluster.CSIVolume{{Name: claim.Spec.VolumeName, Claim: namespace + "/" + claimName, Zone: "zone-b", Bytes: 1 << 30}}, volumes)

	require.NoError(t, client.CoreV1().Pods(namespace).Delete(t.Context(), podName, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	require.NoError(t, client.CoreV1().PersistentVolumeClaims(namespace).Delete(t.Context(), claimName, metav1.DeleteOptions{}))
	until(t, "the volume to be deleted", csi.Volumes, func(volumes []cluster.CSIVolume) bool { return len(volumes) == 0 })
	// The provisioner publishes the new capacity at its next poll, up to a minute later.

	// Outside Linux, the kernel does not kill the provisioner with its parent. It ends because the driver does.
	require.NoError(t, csi.Driver.Kill())
	<-csi.Provisioner.Exited()
	require.ErrorContains(t, shared.Err(), "csi-provisioner")
	require.NoError(t, csi.Driver.Start())
	require.NoError(t, csi.Provisioner.Restart(t.Context()))
	require.NoError(t, shared.Err())
}
