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

func TestDecideOnClaims(t *testing.T) {
	ephemeralPod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp", gen.OfClass("local")))
	ofPod := gen.OwnedBy("Pod", "web", "pod-1")
	cases := map[string]decideCase{
		"NoClaims": {
			reason:  "other volumes are none of this plugin's business",
			objects: []client.Object{gen.Pod("web", gen.EmptyDir("tmp"))},
		},
		"Missing": {
			reason: "a claim that does not exist is refused", want: framework.KindRefuse,
			about: "PersistentVolumeClaim default/data", says: "does not exist",
		},
		"Terminating": {
			reason: "the kubelet would not start the pod", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.Terminating()), volumeNamed("pv", gen.ClaimRef(theClaim()))},
			about:   "PersistentVolumeClaim default/data", says: "being deleted",
		},
		"Lost": {
			reason: "its volume is gone", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimLost))},
			about:   "PersistentVolumeClaim default/data", says: `lost its PersistentVolume "pv"`,
		},
		"EphemeralOwned": {
			reason:  "a claim that was made for this pod is its own",
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp", ofPod), local},
			dynamic: []string{"web-tmp"},
		},
		"EphemeralOfAnother": {
			reason: "a claim that only has the name is somebody else's", want: framework.KindRefuse,
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp"), local},
			about:   "PersistentVolumeClaim default/web-tmp", says: "not created for ephemeral volume",
		},
		"EphemeralOfEarlierPod": {
			reason: "the owner is compared by UID", want: framework.KindRefuse,
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-0")), local},
			about:   "PersistentVolumeClaim default/web-tmp", says: "not created for ephemeral volume",
		},
		"EphemeralNotYet": {
			reason: "the controller will make it soon", want: framework.KindWait,
			objects: []client.Object{ephemeralPod, local},
			about:   "PersistentVolumeClaim default/web-tmp", says: `"tmp"`,
		},
		"Bound": {
			reason:  "nothing is to be done",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-a"))},
		},
		"BoundWithPhasePending": {
			reason:  "the phase may lag behind; the annotation counts",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimPending)), volumeNamed("pv", gen.ClaimRef(theClaim()))},
		},
		"BoundElsewhere": {
			reason: "the volume cannot be reached from the node", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-b"))},
			about:   "PersistentVolume pv", says: "excludes node node-a",
		},
		"BoundVolumeMissing": {
			reason: "the claim is as good as lost", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"))},
			about:   "PersistentVolumeClaim default/data", says: "pv does not exist",
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
		"BoundVolumeUnclaimed": {
			reason: "somebody cleared the claimRef", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "does not name the claim",
		},
		"ClassMissing": {
			reason: "without a class, no controller binds the claim", want: framework.KindRefuse,
			objects: []client.Object{theClaim(), volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "StorageClass local does not exist",
		},
		"Immediate": {
			reason: "it is bound without a pod, so the scheduler should have waited for it", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.OfClass("eager")), eager, volumeNamed("pv", gen.VolumeOfClass("eager"))},
			about:   "PersistentVolumeClaim default/data", says: "not bound yet",
		},
		"NoClass": {
			reason: "no class means Immediate", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.OfClass("")), volumeNamed("pv", gen.VolumeOfClass(""))},
			about:   "PersistentVolumeClaim default/data", says: "not bound yet",
		},
		"PreBoundClaim": {
			reason: "a claim that names its volume does not wait for a node", want: framework.KindRefuse,
			objects: []client.Object{theClaim(gen.NamesVolume("pv")), local, volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "requests PersistentVolume pv",
		},
	}
	for name, tc := range cases {
		t.Run(name, tc.check)
	}
}
