// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/gen"
)

func theClaim(options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
	return gen.Claim("data", append([]gen.ClaimOption{gen.UID("claim"), gen.OfClass("local")}, options...)...)
}

func TestTrimClaim(t *testing.T) {
	long := strings.Repeat("x", maxClaim)
	bound := func(options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
		return theClaim(append([]gen.ClaimOption{gen.BoundToVolume("v")}, options...)...)
	}
	for name, tc := range map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		// tooLarge and class are whether the spec is left out, and whether the class of the spec is kept.
		tooLarge, class bool
	}{
		"Bound":       {reason: "the spec of a bound claim has no effect any more", claim: bound()},
		"Annotations": {reason: "plugins do not read other annotations", claim: bound(gen.Annotation("example.com/note", long))},
		"Unbound":     {reason: "an unbound claim is matched by its spec", claim: theClaim(), class: true},
		"PreBound":    {reason: "the claim is not bound yet", claim: theClaim(gen.NamesVolume("v")), class: true},
		"Labels":      {reason: "plugins do not read labels", claim: theClaim(gen.Label("example.com/note", long)), class: true},
		"LongNode":    {reason: "a tenant can write selected-node", claim: bound(gen.SelectedNode(long))},
		"LongVolume":  {reason: "a tenant can write volumeName", claim: bound(gen.BoundToVolume(long)), tooLarge: true},
		"LongClass":   {reason: "a tenant can write the annotation", claim: theClaim(gen.Annotation(corev1.BetaStorageClassAnnotation, long)), class: true},
		"Selector":    {reason: "a tenant can write the selector", claim: theClaim(gen.Selects("example.com/rack", long)), tooLarge: true},
		"BoundLong":   {reason: "the selector of a bound claim has no effect any more", claim: bound(gen.Selects("example.com/rack", long))},
		"LongOwner":   {reason: "a tenant can write the owner", claim: theClaim(gen.OwnedBy("Pod", "p", types.UID(long))), tooLarge: true},
	} {
		t.Run(name, func(t *testing.T) {
			claim := TrimClaim(tc.claim)
			assert.Equal(t, claim, TrimClaim(claim.DeepCopy()), "an informer can transform an object twice")
			assert.LessOrEqual(t, claim.Size(), maxClaim, tc.reason)
			assert.Equal(t, tc.tooLarge, metav1.HasAnnotation(claim.ObjectMeta, TooLarge), tc.reason)
			assert.Equal(t, tc.class, claim.Spec.StorageClassName != nil, tc.reason)
		})
	}
}

func TestTrimVolume(t *testing.T) {
	inUse := func(options ...gen.VolumeOption) *corev1.PersistentVolume {
		return gen.Volume("v", append([]gen.VolumeOption{gen.VolumeOfClass("local"), gen.ClaimRef(theClaim()), gen.VolumePhase(corev1.VolumeBound)}, options...)...)
	}
	noUID := inUse()
	noUID.Spec.ClaimRef.UID = ""
	for name, tc := range map[string]struct {
		reason  string
		volume  *corev1.PersistentVolume
		trimmed bool
	}{
		"InUse":    {reason: "the claim has decided", volume: inUse(gen.OnNode("node-a")), trimmed: true},
		"Free":     {reason: "a free volume is matched by its spec", volume: gen.Volume("v", gen.VolumeOfClass("local"), gen.VolumePhase(corev1.VolumeAvailable))},
		"Released": {reason: "a released volume has no claim", volume: inUse(gen.VolumePhase(corev1.VolumeReleased))},
		"Reserved": {reason: "the volume is being bound", volume: inUse(gen.VolumePhase(corev1.VolumeAvailable))},
		"NoUID":    {reason: "an administrator has reserved the volume", volume: noUID},
		"InTree": {
			reason: "the translation of the affinity needs the labels and the source",
			volume: inUse(gen.VolumeSource(corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}})),
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := tc.volume.DeepCopy()
			pv := TrimVolume(tc.volume)
			assert.Equal(t, pv, TrimVolume(pv.DeepCopy()), "an informer can transform an object twice")
			assert.Equal(t, tc.trimmed, pv.Spec.StorageClassName == "", tc.reason)
			assert.Equal(t, want.Spec.NodeAffinity, pv.Spec.NodeAffinity)
			assert.Equal(t, want.Status.Phase, pv.Status.Phase)
		})
	}
}

// node-ready finds the driver of a bound claim by its volume.
func TestTrimVolume_KeepsDriver(t *testing.T) {
	csi := &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com", VolumeHandle: "handle"}
	pv := TrimVolume(gen.Volume("v", gen.ClaimRef(theClaim()), gen.VolumePhase(corev1.VolumeBound), gen.VolumeSource(corev1.PersistentVolumeSource{CSI: csi})))
	assert.Equal(t, "csi.example.com", pv.Spec.CSI.Driver)
}

// Tenants choose the values, so texts of different annotations must differ.
func TestTrimClaim_SharesOnlyEqualAnnotations(t *testing.T) {
	trimmed := func(annotations map[string]string) map[string]string {
		claim := theClaim(gen.BoundToVolume("v"))
		claim.Annotations = annotations
		return TrimClaim(claim).Annotations
	}
	trimmed(map[string]string{volume.AnnBindCompleted: "yes " + volume.AnnSelectedNode + ":node-a"})
	want := map[string]string{volume.AnnBindCompleted: "yes", volume.AnnSelectedNode: "node-a"}
	assert.Equal(t, want, trimmed(maps.Clone(want)))
}

func TestClaimsOf(t *testing.T) {
	pod := gen.Pod("web", gen.UsesClaim("data"), gen.EmptyDir("tmp"), gen.EphemeralVolume("scratch"), gen.UsesClaim("data"), gen.UsesClaim("logs"))
	got := ClaimsOf(pod)
	var names []string
	for _, ref := range got {
		names = append(names, ref.Name)
		assert.Equal(t, ref.Name == "web-scratch", ref.Ephemeral != nil, ref.Name)
	}
	assert.Equal(t, []string{"data", "web-scratch", "logs"}, names, "each claim once, in the order of the pod")
	assert.Empty(t, ClaimsOf(gen.Pod("web")))
}

func TestIsBound(t *testing.T) {
	named := theClaim(gen.NamesVolume("v"))
	assert.True(t, IsBound(theClaim(gen.BoundToVolume("v"))))
	assert.True(t, IsBound(theClaim(gen.BoundToVolume("v"), gen.ClaimPhase(corev1.ClaimPending))), "the phase is updated later")
	assert.False(t, IsBound(named), "the controller has not completed the bind")
	assert.False(t, IsBound(theClaim()))
}
