// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// stepCase is a state of a claim and the expected progress.
type stepCase struct {
	reason string
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
	// bound or want; if neither is set, the claim waits.
	bound bool
	want  framework.Kind
	about string
	says  string
}

func (tc stepCase) check(t *testing.T, got progress, err error) {
	t.Helper()
	if tc.want != "" {
		require.Error(t, err, tc.reason)
		assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
		assert.Equal(t, tc.about, framework.AsError(Name, err).Object.String())
		assert.Contains(t, err.Error(), tc.says)
		return
	}
	require.NoError(t, err, tc.reason)
	assert.Equal(t, tc.bound, got.bound, tc.reason)
	if !tc.bound {
		assert.Equal(t, framework.Object{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data"}, got.waiting.Object)
		assert.Contains(t, got.waiting.For, tc.says)
	}
}

func TestStaticProgress(t *testing.T) {
	ours := gen.ClaimRef(theClaim())
	written := match{claim: theClaim(), volume: volumeNamed("pv", ours, gen.Version("20"))}
	cases := map[string]stepCase{
		"ClaimGone": {
			reason: "final: the claim was deleted", want: framework.KindRefuse,
			volume: volumeNamed("pv", ours), about: "PersistentVolumeClaim default/data", says: "deleted",
		},
		"VolumeGone": {
			reason: "final: the volume was deleted", want: framework.KindRefuse,
			claim: theClaim(), about: "PersistentVolume pv", says: "deleted",
		},
		"NotYet": {
			reason: "the PersistentVolume controller has not bound the claim yet",
			claim:  theClaim(), volume: volumeNamed("pv", ours), says: "PersistentVolume pv",
		},
		"OlderVolume": {
			reason: "the cache still has the volume from before the write, without claimRef",
			claim:  theClaim(), volume: volumeNamed("pv", gen.Version("19")), says: "PersistentVolume pv",
		},
		"OlderVolumeElsewhere": {
			reason: "fields of an older state do not count",
			claim:  theClaim(), volume: volumeNamed("pv", gen.Version("9"), gen.OnNode("node-b")), says: "PersistentVolume pv",
		},
		"ClaimRefReset": {
			reason: "final: the controller or a user removed the claimRef", want: framework.KindRefuse,
			claim: theClaim(), volume: volumeNamed("pv", gen.Version("21")), about: "PersistentVolume pv", says: "no longer names",
		},
		"ClaimRefResetAtIncomparableVersion": {
			reason: "a version that cannot be compared counts as newer", want: framework.KindRefuse,
			claim: theClaim(), volume: volumeNamed("pv", gen.Version("x")), about: "PersistentVolume pv", says: "no longer names",
		},
		"ClaimRefOfOtherUID": {
			reason: "final: the volume belongs to another claim with the same name", want: framework.KindRefuse,
			claim: theClaim(), volume: volumeNamed("pv", gen.Version("21"), gen.ClaimRef(theClaim(gen.UID("claim-0")))),
			about: "PersistentVolume pv", says: "no longer names",
		},
		"Bound": {
			reason: "the claim and the volume name each other, and the controller has finished",
			claim:  theClaim(gen.BoundToVolume("pv")), volume: volumeNamed("pv", ours, gen.OnNode("node-a")), bound: true,
		},
		"NamedNotCompleted": {
			reason: "the claim names the volume, but the controller has not finished",
			claim:  theClaim(gen.NamesVolume("pv")), volume: volumeNamed("pv", ours), says: "PersistentVolume pv",
		},
		"BoundToAnother": {
			reason: "another pod with the claim chose another volume, and the next call checks that one", want: framework.KindWait,
			claim: theClaim(gen.BoundToVolume("other")), volume: volumeNamed("pv", ours),
			about: "PersistentVolumeClaim default/data", says: "PersistentVolume other",
		},
		"BoundToAnotherVolumeGone": {
			reason: "the claim is bound to another volume", want: framework.KindWait,
			claim: theClaim(gen.BoundToVolume("other")), about: "PersistentVolumeClaim default/data", says: "PersistentVolume other",
		},
		"ClaimTerminating": {
			reason: "final: the kubelet would not start the pod", want: framework.KindRefuse,
			claim: theClaim(gen.Terminating()), volume: volumeNamed("pv", ours), about: "PersistentVolumeClaim default/data", says: "being deleted",
		},
		"ClaimLost": {
			reason: "final: the volume was deleted after it was bound", want: framework.KindRefuse,
			claim: theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimLost)), about: "PersistentVolumeClaim default/data", says: "lost",
			volume: volumeNamed("pv", ours),
		},
		"ClaimRefWithoutUID": {
			reason: "final: another client removed the UID from the claimRef", want: framework.KindRefuse,
			claim: theClaim(), volume: volumeNamed("pv", gen.Version("21"), gen.ClaimRef(theClaim(gen.UID("")))), about: "PersistentVolume pv", says: "no longer names",
		},
		"AffinityChangedBeforeTheClaimNamesIt": {
			reason: "final: the volume cannot be used on the node", want: framework.KindRefuse,
			claim: theClaim(), volume: volumeNamed("pv", gen.Version("21"), ours, gen.OnNode("node-b")),
			about: "PersistentVolume pv", says: "excludes node",
		},
		"AffinityChanged": {
			reason: "final: the node affinity of the volume has changed", want: framework.KindRefuse,
			claim: theClaim(gen.NamesVolume("pv")), volume: volumeNamed("pv", gen.Version("21"), ours, gen.OnNode("node-b")),
			about: "PersistentVolume pv", says: "excludes node",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := staticProgress(written, observed{claim: tc.claim, volume: tc.volume}, target{node: theNode()})
			tc.check(t, got, err)
		})
	}
}

func TestDynamicProgress(t *testing.T) {
	written := theClaim(gen.SelectedNode("node-a"), gen.Version("110"))
	at := func(version string, options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
		return theClaim(append(options, gen.Version(version))...)
	}
	here := gen.SelectedNode("node-a")
	cases := map[string]stepCase{
		"ClaimGone": {
			reason: "final: the claim was deleted", want: framework.KindRefuse,
			about: "PersistentVolumeClaim default/data", says: "deleted",
		},
		"NotYet": {
			reason: "the provisioner is working",
			claim:  at("111", here, gen.Annotation(volume.AnnStorageProvisioner, "csi.example.com")), says: "csi.example.com",
		},
		"NotYetUnknownProvisioner": {
			reason: "the message omits an unknown provisioner",
			claim:  at("110", here), says: "node-a",
		},
		"OlderClaim": {
			reason: "the cache still has the claim from before the write, without selected-node",
			claim:  at("99"), says: "node-a",
		},
		"ClaimTerminating": {
			reason: "final: the kubelet would not start the pod", want: framework.KindRefuse,
			claim: at("111", here, gen.Terminating()), about: "PersistentVolumeClaim default/data", says: "being deleted",
		},
		"ClaimLost": {
			reason: "final: the provisioned volume was deleted", want: framework.KindRefuse,
			claim: at("111", here, gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimLost)), about: "PersistentVolumeClaim default/data", says: "lost",
		},
		"SelectedNodeRemoved": {
			reason: "final: the provisioner requests another node", want: framework.KindRefuse,
			claim: at("111"), about: "PersistentVolumeClaim default/data", says: "another node",
		},
		"SelectedNodeRemovedAtIncomparableVersion": {
			reason: "a version that cannot be compared counts as newer", want: framework.KindRefuse,
			claim: at("x"), about: "PersistentVolumeClaim default/data", says: "another node",
		},
		"SelectedNodeChanged": {
			reason: "final: another client changed selected-node", want: framework.KindRefuse,
			claim: at("111", gen.SelectedNode("node-b")), about: "PersistentVolumeClaim default/data", says: "node-b",
		},
		"Bound": {
			reason: "the volume is provisioned, bound, and usable on the node",
			claim:  at("112", here, gen.BoundToVolume("pv")), volume: volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-a")), bound: true,
		},
		"BoundVolumeNotSeen": {
			reason: "the watch event of the volume has not arrived yet",
			claim:  at("112", here, gen.BoundToVolume("pv")), says: "node-a",
		},
		"NamedNotCompleted": {
			reason: "the controller has not finished",
			claim:  at("112", here, gen.NamesVolume("pv")), volume: volumeNamed("pv", gen.ClaimRef(theClaim())), says: "node-a",
		},
		"VolumeOfAnother": {
			reason: "the claimRef names another claim",
			claim:  at("112", here, gen.BoundToVolume("pv")), volume: volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID("claim-0")))), says: "node-a",
		},
		"Elsewhere": {
			reason: "final: the provisioned volume cannot be used on the node", want: framework.KindRefuse,
			claim: at("112", here, gen.NamesVolume("pv")), volume: volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-b")),
			about: "PersistentVolume pv", says: "excludes node",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := dynamicProgress(written, observed{claim: tc.claim, volume: tc.volume}, target{node: theNode()})
			tc.check(t, got, err)
		})
	}
}
