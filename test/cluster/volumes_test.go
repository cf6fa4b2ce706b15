// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
)

func TestProvisionerTakesItsTime(t *testing.T) {
	const delay = 2 * time.Second
	client := clientFor(t, shared.Config())
	namespace := newNamespace(t, client)
	newNodes(t, client, cluster.Node("slow", cluster.WithZone("zone-slow")))
	claimName := newClaim(t, client, namespace, map[string]string{"delay": delay.String()})
	podName := newPod(t, client, namespace, cluster.DefaultScheduler, claimName)

	until(t, "the selected node", func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
		return client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claimName, metav1.GetOptions{})
	}, func(claim *corev1.PersistentVolumeClaim) bool { return claim.Annotations[selectedNode] == "slow" })
	selected := time.Now()
	untilBound(t, client, namespace, podName)
	assert.GreaterOrEqual(t, time.Since(selected), delay-500*time.Millisecond, "the pod waits for its volume")

	claim := getClaim(t, client, namespace, claimName)
	require.Equal(t, corev1.ClaimBound, claim.Status.Phase)
	volume, err := client.CoreV1().PersistentVolumes().Get(t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, cluster.ProvisionerName, volume.Spec.CSI.Driver)
	assert.Equal(t, volume.Name, volume.Spec.CSI.VolumeHandle)
	assert.Equal(t, "1Gi", volume.Spec.Capacity.Storage().String())
	require.NotNil(t, volume.Spec.NodeAffinity)
	reach := volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	assert.Equal(t, corev1.LabelTopologyZone, reach.Key)
	assert.Equal(t, []string{"zone-slow"}, reach.Values)

	// The reclaim policy of the class is Delete.
	require.NoError(t, client.CoreV1().Pods(namespace).Delete(t.Context(), podName, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	require.NoError(t, client.CoreV1().PersistentVolumeClaims(namespace).Delete(t.Context(), claimName, metav1.DeleteOptions{}))
	until(t, "the volume to be deleted", func(ctx context.Context) (*corev1.PersistentVolumeList, error) {
		return client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + volume.Name})
	}, func(list *corev1.PersistentVolumeList) bool { return len(list.Items) == 0 })
}

func TestProvisionerFailsAsAskedFor(t *testing.T) {
	cases := map[string]struct {
		reason     string
		parameters map[string]string
		event      string
	}{
		"ordinary error": {
			reason:     "the library repeats the call and the second succeeds",
			parameters: map[string]string{"fail": "error", "failTimes": "1", "affinity": "hostname"},
			event:      "(fail: error)",
		},
		"reschedule": {
			reason:     "the selected node is removed, the scheduler selects again, and the second call succeeds",
			parameters: map[string]string{"fail": "reschedule", "failTimes": "1", "affinity": "none"},
			event:      "(fail: reschedule)",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			client := clientFor(t, shared.Config())
			namespace := newNamespace(t, client)
			newNodes(t, client, cluster.Node("failing"))
			claim := newClaim(t, client, namespace, tc.parameters)
			untilBound(t, client, namespace, newPod(t, client, namespace, cluster.DefaultScheduler, claim))
			until(t, "the event about the failure", func(ctx context.Context) (*corev1.EventList, error) {
				return client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=ProvisioningFailed,involvedObject.name=" + claim})
			}, func(list *corev1.EventList) bool {
				return len(list.Items) > 0 && assert.Contains(t, list.Items[0].Message, tc.event, tc.reason)
			})
		})
	}
}

// TestNoPreBindScheduler is about the profile that leaves the volumes to others:
// it chooses a node by the volumes but posts the Binding with nothing done.
func TestNoPreBindScheduler(t *testing.T) {
	client := clientFor(t, shared.Config())
	namespace := newNamespace(t, client)
	newNodes(t, client, cluster.Nodes("blind", 2)...)
	claim := newClaim(t, client, namespace, nil)
	pod := untilBound(t, client, namespace, newPod(t, client, namespace, cluster.NoPreBindScheduler, claim))
	got := getClaim(t, client, namespace, claim)
	assert.Equal(t, corev1.ClaimPending, got.Status.Phase)
	assert.NotContains(t, got.Annotations, selectedNode)

	// The test then does the scheduler's part.
	got.Annotations = map[string]string{selectedNode: pod.Spec.NodeName}
	_, err := client.CoreV1().PersistentVolumeClaims(namespace).Update(t.Context(), got, metav1.UpdateOptions{})
	require.NoError(t, err)
	bound := until(t, "the claim to be bound", func(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
		return client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, metav1.GetOptions{})
	}, func(claim *corev1.PersistentVolumeClaim) bool { return claim.Status.Phase == corev1.ClaimBound })

	// A bound claim decides where a pod can go, in this profile as well.
	volume, err := client.CoreV1().PersistentVolumes().Get(t.Context(), bound.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(t, err)
	node, err := client.CoreV1().Nodes().Get(t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, []string{node.Labels[corev1.LabelTopologyZone]},
		volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values)
	second := untilBound(t, client, namespace, newPod(t, client, namespace, cluster.NoPreBindScheduler, claim))
	assert.Equal(t, pod.Spec.NodeName, second.Spec.NodeName)
}
