// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestPackClaim(t *testing.T) {
	long := strings.Repeat("x", maxClaim)
	bound := func(options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
		return theClaim(append([]gen.ClaimOption{gen.BoundToVolume("v")}, options...)...)
	}
	deleting := bound()
	deleting.DeletionTimestamp = &metav1.Time{}
	for name, tc := range map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		want   any
	}{
		"Bound":       {reason: "a bound claim is packed", claim: bound(), want: &boundClaim{}},
		"Annotations": {reason: "the plugin does not read other annotations", claim: bound(gen.Annotation("example.com/note", long)), want: &boundClaim{}},
		"Lost":        {reason: "a lost claim is not packed", claim: bound(gen.ClaimPhase(corev1.ClaimLost)), want: &corev1.PersistentVolumeClaim{}},
		"Deleting":    {reason: "a claim that is being deleted is not packed", claim: deleting, want: &corev1.PersistentVolumeClaim{}},
		"Unbound":     {reason: "an unbound claim is matched by its spec", claim: theClaim(), want: &corev1.PersistentVolumeClaim{}},
		"PreBound":    {reason: "the claim is not bound yet", claim: theClaim(gen.NamesVolume("v")), want: &corev1.PersistentVolumeClaim{}},
		"Labels":      {reason: "the plugin does not read labels", claim: theClaim(gen.Label("example.com/note", long)), want: &corev1.PersistentVolumeClaim{}},
		"LongNode":    {reason: "a tenant can write selected-node", claim: bound(gen.SelectedNode(long)), want: &compact.Hidden{}},
		"LongVolume":  {reason: "a tenant can write volumeName", claim: bound(gen.BoundToVolume(long)), want: &compact.Hidden{}},
		"LongClass":   {reason: "a tenant can write the annotation", claim: theClaim(gen.Annotation(corev1.BetaStorageClassAnnotation, long)), want: &compact.Hidden{}},
		"Selector":    {reason: "a tenant can write the selector", claim: theClaim(gen.Selects("example.com/rack", long)), want: &compact.Hidden{}},
		"LongOwner":   {reason: "a tenant can write the owner", claim: theClaim(gen.OwnedBy("Pod", "p", types.UID(long))), want: &compact.Hidden{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := packClaim(tc.claim)
			require.NoError(t, err)
			assert.IsType(t, tc.want, got, tc.reason)
			again, err := packClaim(got)
			require.NoError(t, err)
			assert.Equal(t, got, again, "an informer can transform an object twice")
		})
	}
}

func TestPackClaim_KeepsFieldsThatThePluginReads(t *testing.T) {
	pod := thePod()
	claim := theClaim(gen.BoundToVolume("v"), gen.SelectedNode("node-a"), gen.AccessModes(corev1.ReadWriteOncePod), gen.OwnedBy("Pod", pod.Name, pod.UID))
	found, err := packed(claim.DeepCopy())
	require.NoError(t, err)
	got, ok := found.(*corev1.PersistentVolumeClaim)
	require.True(t, ok)
	assert.True(t, isBound(got))
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

func TestPackVolume(t *testing.T) {
	inUse := func(options ...gen.VolumeOption) *corev1.PersistentVolume {
		return volumeNamed("v", append([]gen.VolumeOption{gen.ClaimRef(theClaim()), gen.VolumePhase(corev1.VolumeBound)}, options...)...)
	}
	deleting := inUse()
	deleting.DeletionTimestamp = &metav1.Time{}
	noUID := inUse()
	noUID.Spec.ClaimRef.UID = ""
	for name, tc := range map[string]struct {
		reason string
		volume *corev1.PersistentVolume
		want   any
	}{
		"InUse":    {reason: "a bound volume is packed", volume: inUse(gen.OnNode("node-a")), want: &boundVolume{}},
		"Free":     {reason: "a free volume is matched by its spec", volume: volumeNamed("v", gen.VolumePhase(corev1.VolumeAvailable)), want: &corev1.PersistentVolume{}},
		"Released": {reason: "a released volume has no claim", volume: inUse(gen.VolumePhase(corev1.VolumeReleased)), want: &corev1.PersistentVolume{}},
		"Reserved": {reason: "the volume is being bound", volume: inUse(gen.VolumePhase(corev1.VolumeAvailable)), want: &corev1.PersistentVolume{}},
		"NoUID":    {reason: "an administrator has reserved the volume", volume: noUID, want: &corev1.PersistentVolume{}},
		"Deleting": {reason: "a volume that is being deleted is not packed", volume: deleting, want: &corev1.PersistentVolume{}},
		"InTree": {
			reason: "the translation of the affinity needs the labels and the source", want: &corev1.PersistentVolume{},
			volume: inUse(gen.VolumeSource(corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}})),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := packVolume(tc.volume)
			require.NoError(t, err)
			assert.IsType(t, tc.want, got, tc.reason)
			again, err := packVolume(got)
			require.NoError(t, err)
			assert.Equal(t, got, again, "an informer can transform an object twice")
		})
	}
}

// The PersistentVolume controller writes the volume first. The cache then holds only the packed
// volume, and the plugin must not choose another one.
func TestPackVolume_BoundBeforeItsClaim(t *testing.T) {
	claim := theClaim()
	w := newWorld(thePod(), theNode(), claim, gen.StorageClass("local", "kubernetes.io/no-provisioner"),
		volumeNamed("its-own", gen.ClaimRef(claim), gen.VolumePhase(corev1.VolumeBound), gen.Capacity("5Gi")),
		volumeNamed("free", gen.VolumePhase(corev1.VolumeAvailable), gen.Capacity("1Gi")))
	bc := contextFor(thePod())
	next, err := pluginIn(w).preFlight(t.Context(), bc)
	require.NoError(t, err)
	assert.Equal(t, framework.Run, next)
	pl, err := planned.Get(bc)
	require.NoError(t, err)
	require.Len(t, pl.static, 1)
	assert.Equal(t, "its-own", pl.static[0].volume.Name)
	assert.NotEmpty(t, pl.static[0].volume.Spec.Capacity, "the plugin reads the volume from the API server")
}

// The pods of a claim that is too large for the cache can be bound.
func TestPackClaim_HiddenClaim(t *testing.T) {
	claim := theClaim(gen.Annotation(volume.AnnStorageProvisioner, strings.Repeat("x", maxClaim)))
	w := newWorld(thePod(), theNode(), claim, gen.StorageClass("local", "csi.example.com"))
	bc := contextFor(thePod())
	next, err := pluginIn(w).preFlight(t.Context(), bc)
	require.NoError(t, err)
	assert.Equal(t, framework.Run, next)
	pl, err := planned.Get(bc)
	require.NoError(t, err)
	assert.Len(t, pl.dynamic, 1)
}
