// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

// The plugin reads an object that is not in the cache from the API server before it treats the
// object as deleted. The cache holds only pending pods.
func TestWait_ReadsMissingObjectsLive(t *testing.T) {
	boundClaim := theClaim(gen.BoundToVolume("pv"))
	pv := volumeNamed("pv", gen.ClaimRef(theClaim()))
	everything := []client.Object{thePod(), theNode(), boundClaim, pv}
	cases := map[string]struct {
		reason string
		lacks  client.Object
	}{
		"Pod":    {reason: "the pod can be new", lacks: thePod()},
		"Node":   {reason: "the node can be new", lacks: theNode()},
		"Claim":  {reason: "the claim can be new", lacks: boundClaim},
		"Volume": {reason: "the volume can be new", lacks: pv},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cached, live := newWorld(everything...), newWorld(everything...)
			cached.remove(tc.lacks)
			pl := plan{static: []match{{claim: theClaim(), volume: pv}}}
			err := pluginBetween(cached, live).wait(t.Context(), contextFor(thePod()), pl)
			require.NoError(t, err, tc.reason)
			assert.Equal(t, 4, live.count(), "the plugin reads pod, node, claim and volume once each")
		})
	}
}

// The cache can be behind, so it alone does not end a wait.
func TestWait_ChecksLiveBeforeItEnds(t *testing.T) {
	bound := theClaim(gen.SelectedNode("node-a"), gen.BoundToVolume("pv"), gen.Version("30"))
	pv := volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNodesWith(corev1.LabelTopologyZone, "z1"))
	everything := []client.Object{thePod(), theNode(), bound, pv}
	cases := map[string]struct {
		reason string
		stale  client.Object
	}{
		"Node":         {reason: "the node has the label by now", stale: theNode(gen.Zone(""))},
		"Volume":       {reason: "the volume can be used on the node by now", stale: volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-b"))},
		"SelectedNode": {reason: "another pod has chosen the node again since", stale: theClaim(gen.Version("20"))},
		"Claim":        {reason: "the object was recreated", stale: theClaim(gen.UID("claim-0"))},
		"Pod":          {reason: "the object was recreated", stale: thePod(gen.UID("pod-0"))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cached, live := newWorld(everything...), newWorld(everything...)
			cached.put(tc.stale)
			pl := plan{dynamic: []*corev1.PersistentVolumeClaim{theClaim(gen.SelectedNode("node-a"))}}
			require.NoError(t, pluginBetween(cached, live).wait(t.Context(), contextFor(thePod()), pl), tc.reason)
		})
	}
}
