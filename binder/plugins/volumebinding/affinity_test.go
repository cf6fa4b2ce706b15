// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
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

func gceDisk(zone string, options ...gen.VolumeOption) *corev1.PersistentVolume {
	return volumeNamed("disk", append(onGCE(zone), options...)...)
}

func TestCheckAffinity(t *testing.T) {
	migrated := gen.CSINode("node-a", "kubernetes.io/aws-ebs", gcePlugin)
	inZone := func(zone string) *corev1.Node { return theNode(gen.Label(gceZone, zone)) }
	cases := map[string]struct {
		reason  string
		volume  *corev1.PersistentVolume
		node    *corev1.Node
		csiNode *storagev1.CSINode
		want    framework.Kind
		says    string
	}{
		"Admitted": {reason: "the node has the label", volume: volumeNamed("pv", gen.OnNode("node-a")), node: theNode()},
		"Excluded": {
			reason: "the node does not have the label", want: framework.KindRefuse, says: "node-a",
			volume: volumeNamed("pv", gen.OnNode("node-b")), node: theNode(),
		},
		"MigratedSameZone": {reason: "the affinity comes from the translation", volume: gceDisk("z1"), node: inZone("z1"), csiNode: migrated},
		"MigratedOtherZone": {
			reason: "the affinity comes from the translation", want: framework.KindRefuse, says: "excludes",
			volume: gceDisk("z1"), node: inZone("z2"), csiNode: migrated,
		},
		"NotMigrated": {reason: "the node still runs the in-tree plugin", volume: gceDisk("z1"), node: inZone("z2"), csiNode: gen.CSINode("node-a", "")},
		"NoCSINode":   {reason: "without a CSINode, the plugin counts as not migrated", volume: gceDisk("z1"), node: inZone("z2")},
		"Untranslatable": {
			reason: "the driver does not support zones of two regions", want: framework.KindRefuse, says: "cannot translate",
			volume: gceDisk("us-east1-a__europe-west1-b"), node: inZone("z1"), csiNode: migrated,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := tc.volume.DeepCopy()
			err := snapshot{node: tc.node, csiNode: tc.csiNode}.checkAffinity(tc.volume)
			assert.Equal(t, before, tc.volume, "the volume does not change, because a cache can share it")
			if tc.want == "" {
				require.NoError(t, err, tc.reason)
				return
			}
			assert.True(t, frameworktest.IsKind(err, tc.want), "%s: %v", tc.reason, err)
			assert.Equal(t, "PersistentVolume "+tc.volume.Name, framework.AsError(Name, err).Object.String())
			assert.ErrorContains(t, err, tc.says)
		})
	}
}
