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

// TestWaitLooksBehindTheCache: what the cache lacks is asked of the API server
// before it counts as gone. The cache holds pending pods only.
func TestWaitLooksBehindTheCache(t *testing.T) {
	boundClaim := theClaim(gen.BoundToVolume("pv"))
	pv := volumeNamed("pv", gen.ClaimRef(theClaim()))
	everything := []client.Object{thePod(), theNode(), boundClaim, pv}
	cases := map[string]struct {
		reason string
		lacks  client.Object
	}{
		"Pod":    {reason: "it may just have been created", lacks: thePod()},
		"Node":   {reason: "it may just have been created", lacks: theNode()},
		"Claim":  {reason: "it may just have been created", lacks: boundClaim},
		"Volume": {reason: "it may just have been created", lacks: pv},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			cached, live := newWorld(everything...), newWorld(everything...)
			cached.remove(tc.lacks)
			pl := plan{static: []match{{claim: theClaim(), volume: pv}}}
			err := pluginBetween(cached, live).wait(t.Context(), contextFor(thePod()), pl)
			require.NoError(t, err, tc.reason)
			assert.Equal(t, 4, live.count(), "pod, node, claim and volume, once each")
		})
	}
}

// TestWaitAsksBeforeItEnds: the cache may be behind, so it alone ends no wait.
func TestWaitAsksBeforeItEnds(t *testing.T) {
	bound := theClaim(gen.SelectedNode("node-a"), gen.BoundToVolume("pv"), gen.Version("30"))
	pv := volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNodesWith(corev1.LabelTopologyZone, "z1"))
	everything := []client.Object{thePod(), theNode(), bound, pv}
	cases := map[string]struct {
		reason string
		stale  client.Object
	}{
		"Node":         {reason: "it has got the label since", stale: theNode(gen.Zone(""))},
		"Volume":       {reason: "it was made usable here since", stale: volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-b"))},
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
