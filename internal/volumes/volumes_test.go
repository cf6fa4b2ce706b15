// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/gen"
)

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

func TestIsExclusive(t *testing.T) {
	exclusive, shared := theClaim(), theClaim()
	exclusive.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	assert.True(t, IsExclusive(exclusive))
	assert.False(t, IsExclusive(shared))
}

func TestIsBound(t *testing.T) {
	named := theClaim(gen.NamesVolume("v"))
	assert.True(t, IsBound(theClaim(gen.BoundToVolume("v"))))
	assert.True(t, IsBound(theClaim(gen.BoundToVolume("v"), gen.ClaimPhase(corev1.ClaimPending))), "the phase is updated later")
	assert.False(t, IsBound(named), "the controller has not completed the bind")
	assert.False(t, IsBound(theClaim()))
}

func TestIsMigratable(t *testing.T) {
	inTree := gen.VolumeSource(corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}})
	assert.True(t, IsMigratable(gen.Volume("v", inTree)))
	assert.False(t, IsMigratable(gen.Volume("v")))
}
