// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

const (
	gcePlugin = "kubernetes.io/gce-pd"
	gceZone   = "topology.gke.io/zone"
)

// onGCE makes a volume one of an in-tree plugin. Its labels contain the zone, as in old clusters.
func onGCE(zone string) []gen.VolumeOption {
	source := corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}
	return []gen.VolumeOption{gen.Label(corev1.LabelFailureDomainBetaZone, zone), gen.VolumeSource(source)}
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
