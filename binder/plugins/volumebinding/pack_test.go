// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/volumes"
	"github.com/prebind/prebind/test/gen"
)

func TestPackClaim_KeepsFieldsThatThePluginReads(t *testing.T) {
	pod := thePod()
	claim := theClaim(gen.BoundToVolume("v"), gen.SelectedNode("node-a"), gen.AccessModes(corev1.ReadWriteOncePod), gen.OwnedBy("Pod", pod.Name, pod.UID))
	found, err := packed(claim.DeepCopy())
	require.NoError(t, err)
	got, ok := found.(*corev1.PersistentVolumeClaim)
	require.True(t, ok)
	assert.True(t, volumes.IsBound(got))
	assert.Equal(t, []any{claim.Namespace, claim.Name, claim.UID, claim.ResourceVersion}, []any{got.Namespace, got.Name, got.UID, got.ResourceVersion})
	assert.Equal(t, claim.Spec.AccessModes, got.Spec.AccessModes)
	assert.Equal(t, "node-a", got.Annotations[volume.AnnSelectedNode])
	assert.NoError(t, ephemeral.VolumeIsForPod(pod, got))

	pv := volumeNamed("v", gen.ClaimRef(claim), gen.VolumePhase(corev1.VolumeBound), gen.OnNode("node-a"))
	found, err = packed(pv.DeepCopy())
	require.NoError(t, err)
	small, ok := found.(*corev1.PersistentVolume)
	require.True(t, ok)
	assert.Equal(t, []any{pv.Name, pv.ResourceVersion, pv.Spec.NodeAffinity}, []any{small.Name, small.ResourceVersion, small.Spec.NodeAffinity})
	assert.True(t, volume.IsVolumeBoundToClaim(small, got))
	assert.False(t, volume.IsVolumeBoundToClaim(small, theClaim(gen.UID("another"))))
}

// The PersistentVolume controller writes the volume first. The cache then holds only the packed
// volume, and the plugin must not choose another one.
func TestPackVolume_BoundBeforeItsClaim(t *testing.T) {
	claim := theClaim()
	w := newWorld(thePod(), theNode(), claim, gen.StorageClass("local", "kubernetes.io/no-provisioner"),
		volumeNamed("its-own", gen.ClaimRef(claim), gen.VolumePhase(corev1.VolumeBound), gen.Capacity("5Gi")),
		volumeNamed("free", gen.VolumePhase(corev1.VolumeAvailable), gen.Capacity("1Gi")))
	bc := contextFor(thePod())
	verdict, err := pluginIn(w).pass(t.Context(), bc)
	require.NoError(t, err)
	assert.Empty(t, verdict.Writes)
	assert.Equal(t, "PersistentVolumeClaim default/data: the PersistentVolume controller to bind it to PersistentVolume its-own", verdict.Wait.String())
}
