// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// These are the cases that the tables of upstream do not have.
func TestDecideOnClaims(t *testing.T) {
	ephemeralPod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp", gen.OfClass("local")))
	cases := map[string]decideCase{
		"Terminating": {
			reason: "the kubelet would not start the pod", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.Terminating()), volumeNamed("pv", gen.ClaimRef(theClaim()))},
			about:   "PersistentVolumeClaim default/data", says: "being deleted",
		},
		"Lost": {
			reason: "the volume of the claim is gone", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimLost))},
			about:   "PersistentVolumeClaim default/data", says: `lost its PersistentVolume "pv"`,
		},
		"EphemeralOfEarlierPod": {
			reason: "the owner is compared by UID", want: framework.KindRefuse,
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-0")), local},
			about:   "PersistentVolumeClaim default/web-tmp", says: "not created for ephemeral volume",
		},
		"BoundWithPhasePending": {
			reason:  "the phase is updated later and does not count",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimPending)), volumeNamed("pv", gen.ClaimRef(theClaim()))},
		},
		"BoundVolumeOfAnother": {
			reason: "the volume is for another claim", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(claimNamed("logs")))},
			about:   "PersistentVolumeClaim default/data", says: "does not name the claim",
		},
		"BoundVolumeOfEarlierClaim": {
			reason: "the claimRef is compared by UID", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID("claim-0"))))},
			about:   "PersistentVolumeClaim default/data", says: "does not name the claim",
		},
		"ClassMissing": {
			reason: "without a class, no controller binds the claim", want: framework.KindRefuse,
			objects: []client.Object{theClaim(), volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "StorageClass local does not exist",
		},
		"NoClass": {
			reason: "a claim without a class is bound without a pod", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.OfClass("")), volumeNamed("pv", gen.VolumeOfClass(""))},
			about:   "PersistentVolumeClaim default/data", says: "not bound yet",
		},
	}
	for name, tc := range cases {
		t.Run(name, tc.check)
	}
}
