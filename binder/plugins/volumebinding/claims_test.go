// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
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
