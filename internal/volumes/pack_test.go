// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/internal/compact"
	"github.com/prebind/prebind/test/gen"
)

func theClaim(options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
	return gen.Claim("data", append([]gen.ClaimOption{gen.UID("claim"), gen.OfClass("local")}, options...)...)
}

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
		"Bound":       {reason: "a bound claim is packed", claim: bound(), want: &compact.Object{}},
		"Annotations": {reason: "plugins do not read other annotations", claim: bound(gen.Annotation("example.com/note", long)), want: &compact.Object{}},
		"Lost":        {reason: "a lost claim is not packed", claim: bound(gen.ClaimPhase(corev1.ClaimLost)), want: &corev1.PersistentVolumeClaim{}},
		"Deleting":    {reason: "a claim that is being deleted is not packed", claim: deleting, want: &corev1.PersistentVolumeClaim{}},
		"Unbound":     {reason: "an unbound claim is matched by its spec", claim: theClaim(), want: &corev1.PersistentVolumeClaim{}},
		"PreBound":    {reason: "the claim is not bound yet", claim: theClaim(gen.NamesVolume("v")), want: &corev1.PersistentVolumeClaim{}},
		"Labels":      {reason: "plugins do not read labels", claim: theClaim(gen.Label("example.com/note", long)), want: &corev1.PersistentVolumeClaim{}},
		"LongNode":    {reason: "a tenant can write selected-node", claim: bound(gen.SelectedNode(long)), want: &compact.Object{}},
		"LongVolume":  {reason: "a tenant can write volumeName", claim: bound(gen.BoundToVolume(long)), want: &corev1.PersistentVolumeClaim{}},
		"LongClass":   {reason: "a tenant can write the annotation", claim: theClaim(gen.Annotation(corev1.BetaStorageClassAnnotation, long)), want: &corev1.PersistentVolumeClaim{}},
		"Selector":    {reason: "a tenant can write the selector", claim: theClaim(gen.Selects("example.com/rack", long)), want: &corev1.PersistentVolumeClaim{}},
		"BoundLong":   {reason: "the selector of a bound claim has no effect any more", claim: bound(gen.Selects("example.com/rack", long)), want: &compact.Object{}},
		"LongOwner":   {reason: "a tenant can write the owner", claim: theClaim(gen.OwnedBy("Pod", "p", types.UID(long))), want: &corev1.PersistentVolumeClaim{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := PackClaim(tc.claim)
			require.NoError(t, err)
			assert.IsType(t, tc.want, got, tc.reason)
			again, err := PackClaim(got)
			require.NoError(t, err)
			assert.Equal(t, got, again, "an informer can transform an object twice")
			if claim, ok := got.(*corev1.PersistentVolumeClaim); ok {
				assert.LessOrEqual(t, claim.Size(), maxClaim, tc.reason)
			}
		})
	}
}

func TestPackVolume(t *testing.T) {
	inUse := func(options ...gen.VolumeOption) *corev1.PersistentVolume {
		return gen.Volume("v", append([]gen.VolumeOption{gen.ClaimRef(theClaim()), gen.VolumePhase(corev1.VolumeBound)}, options...)...)
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
		"InUse":    {reason: "a bound volume is packed", volume: inUse(gen.OnNode("node-a")), want: &compact.Object{}},
		"Free":     {reason: "a free volume is matched by its spec", volume: gen.Volume("v", gen.VolumePhase(corev1.VolumeAvailable)), want: &corev1.PersistentVolume{}},
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
			got, err := PackVolume(tc.volume)
			require.NoError(t, err)
			assert.IsType(t, tc.want, got, tc.reason)
			again, err := PackVolume(got)
			require.NoError(t, err)
			assert.Equal(t, got, again, "an informer can transform an object twice")
		})
	}
}

// node-ready finds the driver of a bound claim by its volume.
func TestPackVolume_KeepsDriver(t *testing.T) {
	csi := &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "handle"}
	got, err := PackVolume(gen.Volume("v", gen.ClaimRef(theClaim()), gen.VolumePhase(corev1.VolumeBound), gen.VolumeSource(corev1.PersistentVolumeSource{CSI: csi})))
	require.NoError(t, err)
	pv, ok := compact.Unpack(got).(*corev1.PersistentVolume)
	require.True(t, ok)
	assert.Equal(t, "csi.example.com", pv.Spec.CSI.Driver)
}
