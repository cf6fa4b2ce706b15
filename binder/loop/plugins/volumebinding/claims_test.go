// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	oldframework "github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestDecideOnClaims(t *testing.T) {
	ephemeralPod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp", gen.OfClass("local")))
	ofPod := gen.OwnedBy("Pod", "web", "pod-1")
	cases := map[string]decideCase{
		"Terminating": {
			reason: "the kubelet would not start the pod", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.Terminating()), volumeNamed("pv", gen.ClaimRef(theClaim()))},
			about:   "PersistentVolumeClaim default/data", says: "being deleted",
		},
		"Lost": {
			reason: "the volume of the claim is gone", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimLost))},
			about:   "PersistentVolumeClaim default/data", says: `lost its PersistentVolume "pv"`,
		},
		"EphemeralOwned": {
			reason:  "the claim was created for this pod",
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp", ofPod), local},
			dynamic: []string{"web-tmp"},
		},
		"EphemeralOfEarlierPod": {
			reason: "the owner is compared by UID", want: oldframework.KindRefuse,
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-0")), local},
			about:   "PersistentVolumeClaim default/web-tmp", says: "not created for ephemeral volume",
		},
		"EphemeralNotYet": {
			reason:  "the controller has not created the claim yet",
			objects: []client.Object{ephemeralPod, local},
			about:   "PersistentVolumeClaim default/web-tmp", says: `"tmp"`,
		},
		"BoundWithPhasePending": {
			reason:  "the phase is updated later and does not count",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimPending)), volumeNamed("pv", gen.ClaimRef(theClaim()))},
		},
		"BoundElsewhere": {
			reason: "the volume cannot be reached from the node", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-b"))},
			about:   "PersistentVolume pv", says: "excludes node node-a",
		},
		"BoundVolumeMissing": {
			reason: "the volume of the claim does not exist", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"))},
			about:   "PersistentVolumeClaim default/data", says: "pv does not exist",
		},
		"BoundVolumeOfAnother": {
			reason: "the volume is for another claim", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(claimNamed("logs")))},
			about:   "PersistentVolumeClaim default/data", says: "does not name the claim",
		},
		"BoundVolumeOfEarlierClaim": {
			reason: "the claimRef is compared by UID", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID("claim-0"))))},
			about:   "PersistentVolumeClaim default/data", says: "does not name the claim",
		},
		"BoundVolumeUnclaimed": {
			reason: "the volume has no claimRef", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "does not name the claim",
		},
		"ClassMissing": {
			reason: "without a class, no controller binds the claim", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(), volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "StorageClass local does not exist",
		},
		"Immediate": {
			reason: "the class binds the claim without a pod, so the scheduler must wait for it", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.OfClass("eager")), eager, volumeNamed("pv", gen.VolumeOfClass("eager"))},
			about:   "PersistentVolumeClaim default/data", says: "not bound yet",
		},
		"NoClass": {
			reason: "a claim without a class is bound without a pod", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.OfClass("")), volumeNamed("pv", gen.VolumeOfClass(""))},
			about:   "PersistentVolumeClaim default/data", says: "not bound yet",
		},
		"PreBoundClaim": {
			reason: "a claim that names its volume does not wait for a node", want: oldframework.KindRefuse,
			objects: []client.Object{theClaim(gen.NamesVolume("pv")), local, volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "requests PersistentVolume pv",
		},
	}
	for name, tc := range cases {
		t.Run(name, tc.check)
	}
}
