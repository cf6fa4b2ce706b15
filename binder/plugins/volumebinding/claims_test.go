// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

func TestDecideOnClaims(t *testing.T) {
	ephemeralPod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp", gen.OfClass("local")))
	cases := map[string]decideCase{
		"Terminating": {
			reason:  "the kubelet would not start the pod",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.Terminating()), volumeNamed("pv", gen.ClaimRef(theClaim()))},
			about:   "PersistentVolumeClaim default/data", says: "being deleted",
		},
		"Lost": {
			reason:  "the volume of the claim is gone",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimLost))},
			about:   "PersistentVolumeClaim default/data", says: `lost its PersistentVolume "pv"`,
		},
		"EphemeralOfEarlierPod": {
			reason:  "the owner is compared by UID",
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-0")), local},
			about:   "PersistentVolumeClaim default/web-tmp", says: "not created for ephemeral volume",
		},
		"BoundVolumeOfEarlierClaim": {
			reason:  "the claimRef is compared by UID",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID("claim-0"))))},
			about:   "PersistentVolumeClaim default/data", says: "does not name the claim",
		},
		"BoundVolumeOfDeletedClaim": {
			reason:  "an administrator has removed the UID, so that another claim can use the volume",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID(""))))},
			about:   "PersistentVolumeClaim default/data", says: "does not name the claim",
		},
		"BoundVolumeFailed": {
			reason: "the PersistentVolume controller could not delete a released volume",
			objects: []client.Object{
				theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()), gen.VolumePhase(corev1.VolumeFailed)),
			},
			about: "PersistentVolume pv", says: "the volume is Failed",
		},
		"BoundVolumeReleased": {
			reason: "the PersistentVolume controller releases a volume if the claim with the UID in its claimRef does not exist",
			objects: []client.Object{
				theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()), gen.VolumePhase(corev1.VolumeReleased)),
			},
			about: "PersistentVolume pv", says: "the volume is Released",
		},
		"BoundVolumeMissing": {
			reason:  "upstream bound-pvc,pv-not-exists: the volume of the claim does not exist",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"))},
			about:   "PersistentVolumeClaim default/data", says: "its PersistentVolume pv does not exist",
		},
		"NamesVolume": {
			reason:  "upstream prebound-pvc: the volume does not name the claim",
			objects: []client.Object{theClaim(gen.NamesVolume("pv")), local, volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "requests PersistentVolume pv",
		},
		"Immediate": {
			reason:  "upstream immediate-unbound-pvc: the claim is bound without a pod",
			objects: []client.Object{theClaim(), gen.StorageClass("local", "csi.example.com", gen.Immediate())},
			about:   "PersistentVolumeClaim default/data", says: "volumeBindingMode is not WaitForFirstConsumer",
		},
		"EphemeralMissing": {
			reason:  "kube-scheduler requeues the pod until the claim exists; Prebind waits for it",
			objects: []client.Object{ephemeralPod, local},
			wait:    `PersistentVolumeClaim default/web-tmp: the ephemeral volume controller to create the claim of volume "tmp"`,
		},
		"ClassMissing": {
			reason:  "without a class, no controller binds the claim",
			objects: []client.Object{theClaim(), volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "StorageClass local does not exist",
		},
		"NoClass": {
			reason:  "a claim without a class is bound without a pod",
			objects: []client.Object{theClaim(gen.OfClass("")), volumeNamed("pv", gen.VolumeOfClass(""))},
			about:   "PersistentVolumeClaim default/data", says: "not bound yet",
		},
	}
	for name, tc := range cases {
		t.Run(name, tc.check)
	}
}

// TestSmallest_FindsTheSameVolumeAsUpstream checks the affinity of free volumes.
func TestCheckAffinity(t *testing.T) {
	migrated := gen.CSINode("node-a", "kubernetes.io/aws-ebs", gcePlugin)
	inZone := func(zone string) *corev1.Node { return theNode(gen.Label(gceZone, zone)) }
	bound := func(zone string) []client.Object {
		return []client.Object{theClaim(gen.BoundToVolume("disk")), volumeNamed("disk", append(onGCE(zone), gen.ClaimRef(theClaim()))...)}
	}
	cases := map[string]decideCase{
		"MigratedSameZone": {reason: "the affinity comes from the translation", objects: append(bound("z1"), inZone("z1"), migrated)},
		"MigratedOtherZone": {
			reason: "the affinity comes from the translation", objects: append(bound("z1"), inZone("z2"), migrated), about: "PersistentVolume disk", says: "excludes",
		},
		"NotMigrated": {reason: "the node still runs the in-tree plugin", objects: append(bound("z1"), inZone("z2"), gen.CSINode("node-a", ""))},
		"NoCSINode":   {reason: "without a CSINode, the plugin counts as not migrated", objects: append(bound("z1"), inZone("z2"))},
		"Untranslatable": {
			reason:  "the driver does not support zones of two regions",
			objects: append(bound("us-east1-a__europe-west1-b"), inZone("z1"), migrated), about: "PersistentVolume disk", says: "cannot translate",
		},
	}
	for name, tc := range cases {
		t.Run(name, tc.check)
	}
}

// The PersistentVolume controller would never bind the claim to a volume with other access modes that names it.
func TestPreBind_ReservedWithOtherModes(t *testing.T) {
	other := volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID(""))), gen.VolumeAccessModes(corev1.ReadOnlyMany))
	objects := []client.Object{theClaim(gen.AccessModes(corev1.ReadWriteOnce)), local, other, volumeNamed("good")}
	decideCase{objects: objects, static: []string{"data=good"}}.check(t)
}

// A claim that the pod names in two ways must be that of its ephemeral volume.
func TestPreFlight_EphemeralByName(t *testing.T) {
	foreign := claimNamed("web-tmp", gen.BoundToVolume("pv"))
	pod := gen.Pod("web", gen.UID("pod-1"), gen.UsesClaim("web-tmp"), gen.EphemeralVolume("tmp"))
	objects := []client.Object{pod, foreign, local, volumeNamed("pv", gen.ClaimRef(foreign))}
	decideCase{objects: objects, about: "PersistentVolumeClaim default/web-tmp", says: "was not created for"}.check(t)
	const wait = `PersistentVolumeClaim default/web-tmp: the ephemeral volume controller to create the claim of volume "tmp"`
	decideCase{objects: []client.Object{pod, local}, wait: wait}.check(t)
}

// The message names the first cause that a person has to act on.
func TestPreFlight_EphemeralMessages(t *testing.T) {
	for says, claim := range map[string]*corev1.PersistentVolumeClaim{
		"too large":     claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-1"), gen.Selects("a", strings.Repeat("x", 9000))),
		"being deleted": claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-0"), gen.Terminating()),
	} {
		objects := []client.Object{gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp")), claim, local}
		decideCase{objects: objects, about: "PersistentVolumeClaim default/web-tmp", says: says}.check(t)
	}
}
