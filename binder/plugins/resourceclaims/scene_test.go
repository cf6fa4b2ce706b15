// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/ledger"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

func versioned(version string) claimOption {
	return func(c *resourcev1.ResourceClaim) { c.ResourceVersion = version }
}

func TestSightings_Entry(t *testing.T) {
	device := structured.MakeDeviceID(driver, "node-a", "gpu-0")
	e := entry{Claim: ledger.ObjectName{Namespace: "default", Name: "c"}, UID: "claim-c", Attempt: "here-1", Version: "10"}
	cases := map[string]struct {
		reason string
		seen   sightings
		want   standing
	}{
		"NotSeen":    {reason: "the claim was not read", want: unknown},
		"Gone":       {reason: "the claim was deleted", seen: sightings{"claim-c": nil}, want: free},
		"HasIt":      {reason: "the claim has the device", seen: sightings{"claim-c": theClaim("c", allocated("node-a", "gpu-0"), versioned("20"))}, want: inUse},
		"HasAnother": {reason: "the write that requires version 10 fails", seen: sightings{"claim-c": theClaim("c", allocated("node-a", "gpu-1"), versioned("11"))}, want: free},
		"InProgress": {reason: "the write can still succeed", seen: sightings{"claim-c": theClaim("c", versioned("10"))}, want: inUse},
		"Changed":    {reason: "the write fails, with or without a mark", seen: sightings{"claim-c": theClaim("c", marked("web", "here-1"), versioned("11"))}, want: free},
		"Younger":    {reason: "the claim was read before the attempt read it", seen: sightings{"claim-c": theClaim("c", versioned("9"))}, want: unknown},
		"Digits":     {reason: "versions are compared as numbers", seen: sightings{"claim-c": theClaim("c", versioned("100"))}, want: free},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, tc.seen.entry(e, device), tc.reason) })
	}
}

func TestSightings_Claim(t *testing.T) {
	device := structured.MakeDeviceID(driver, "node-a", "gpu-0")
	cached := theClaim("c", allocated("node-a", "gpu-0"), versioned("10"))
	cases := map[string]struct {
		reason string
		seen   sightings
		want   standing
	}{
		"NotSeen": {reason: "the cache may be behind", want: unknown},
		"Gone":    {reason: "the claim was deleted", seen: sightings{"claim-c": nil}, want: free},
		"HasIt":   {reason: "the claim has the device", seen: sightings{"claim-c": cached}, want: inUse},
		"Freed":   {reason: "the cache is behind", seen: sightings{"claim-c": theClaim("c", versioned("11"))}, want: free},
		"Younger": {reason: "the claim was allocated after it was read", seen: sightings{"claim-c": theClaim("c", versioned("9"))}, want: unknown},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, tc.seen.claim(cached, device), tc.reason) })
	}
}

func TestServes(t *testing.T) {
	node := gen.Node("node-a", gen.Zone("z1"))
	zone := func(value string) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
		}}}
	}
	cases := map[string]struct {
		reason string
		spec   resourcev1.ResourceSliceSpec
		want   bool
	}{
		"Node":        {reason: "the slice is for the node", spec: resourcev1.ResourceSliceSpec{NodeName: new("node-a")}, want: true},
		"OtherNode":   {reason: "the slice is for another node", spec: resourcev1.ResourceSliceSpec{NodeName: new("node-b")}},
		"All":         {reason: "every node can use it", spec: resourcev1.ResourceSliceSpec{AllNodes: new(true)}, want: true},
		"Zone":        {reason: "the node is in the zone", spec: resourcev1.ResourceSliceSpec{NodeSelector: zone("z1")}, want: true},
		"OtherZone":   {reason: "the node is not in the zone", spec: resourcev1.ResourceSliceSpec{NodeSelector: zone("z2")}},
		"Device":      {reason: "one of the devices is for the node", spec: resourcev1.ResourceSliceSpec{PerDeviceNodeSelection: new(true), Devices: []resourcev1.Device{{NodeName: new("node-b")}, {NodeName: new("node-a")}}}, want: true},
		"OtherDevice": {reason: "no device is for the node", spec: resourcev1.ResourceSliceSpec{PerDeviceNodeSelection: new(true), Devices: []resourcev1.Device{{NodeName: new("node-b")}}}},
		"Broken": {reason: "the allocator reports the error", want: true, spec: resourcev1.ResourceSliceSpec{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "x", Operator: "Sideways"}},
		}}}}},
		"Nothing": {reason: "a later Kubernetes version can add kinds of slices", spec: resourcev1.ResourceSliceSpec{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, serves(&resourcev1.ResourceSlice{Spec: tc.spec}, node), tc.reason)
		})
	}
}

// TestScene_ChoosesLikeTheWholeCluster compares a choice from the scene with a choice from all
// slices, claims and records, in random clusters.
func TestScene_ChoosesLikeTheWholeCluster(t *testing.T) {
	fitted := 0
	for seed := range int64(200) {
		rng := rand.New(rand.NewSource(seed))
		s := newAPI(deviceClass())
		for n := range 4 {
			node := fmt.Sprintf("node-%d", n)
			s.Put(gen.Node(node, gen.Zone(fmt.Sprintf("z%d", n%2))))
			s.Put(pool(node, "gpu-0", "gpu-1"))
			own := newPoolRecord(poolID{driver, node})
			for d := range 2 {
				claim := theClaim(fmt.Sprintf("c%d%d", n, d))
				device := fmt.Sprintf("gpu-%d", d)
				switch rng.Intn(3) {
				case 0:
					allocated(node, device)(claim)
					s.Put(claim)
				case 1:
					own.entries[device] = entry{Claim: ledger.ObjectName(client.ObjectKeyFromObject(claim)), UID: claim.UID, Attempt: "gone-1", Version: "1"}
				}
			}
			if len(own.entries) > 0 {
				s.Put(recordOf(t, own))
			}
		}
		fabric, ok := pool("fabric", "gpu-0").(*resourcev1.ResourceSlice)
		require.True(t, ok)
		fabric.Spec.NodeName, fabric.Spec.NodeSelector = nil, onNode(fmt.Sprintf("node-%d", rng.Intn(4)))
		// An incomplete pool has no usable devices.
		fabric.Spec.Pool.ResourceSliceCount = 1 + int64(rng.Intn(2))
		s.Put(fabric)
		wanted := theClaim("wanted")
		wanted.Spec.Devices.Requests[0].Exactly.Count = int64(1 + rng.Intn(3))

		r := newAllocating(t, s)
		node := &corev1.Node{}
		require.NoError(t, s.get(client.ObjectKey{Name: fmt.Sprintf("node-%d", rng.Intn(4))}, node))
		scene, err := r.allocator.sceneOf(t.Context(), node)
		require.NoError(t, err)
		got, err := r.allocator.fit(t.Context(), node, wanted, scene.slices, scene.occupied(wanted, "here-1", sightings{}).taken)
		require.NoError(t, err)
		all, taken := everything(t, s, wanted.UID, "here-1")
		want, err := r.allocator.fit(t.Context(), node, wanted, all, taken)
		require.NoError(t, err)
		require.Equal(t, want, got, "seed %d", seed)
		if got != nil {
			fitted++
		}
	}
	require.Greater(t, fitted, 20)
	require.Less(t, fitted, 180)
}

// everything returns all slices, and all devices in claims or in records of other attempts.
func everything(t *testing.T, s *apiServer, claim types.UID, attempt string) ([]*resourcev1.ResourceSlice, sets.Set[deviceID]) {
	t.Helper()
	var slices resourcev1.ResourceSliceList
	var claims resourcev1.ResourceClaimList
	require.NoError(t, s.Cache().List(t.Context(), &slices))
	require.NoError(t, s.Cache().List(t.Context(), &claims))
	taken := sets.New[deviceID]()
	for _, r := range poolRecords(t, s) {
		for device, e := range r.entries {
			if e.UID != claim || e.Attempt != attempt {
				taken.Insert(r.id.device(device))
			}
		}
	}
	for i := range claims.Items {
		if claims.Items[i].UID != claim {
			taken = taken.Union(devicesOf(claims.Items[i].Status.Allocation))
		}
	}
	published := make([]*resourcev1.ResourceSlice, 0, len(slices.Items))
	for i := range slices.Items {
		published = append(published, &slices.Items[i])
	}
	return published, taken
}

// A rejection reads no claims on other nodes. It reads no claims if the request does not fit on
// an empty node.
func TestAllocate_ReadsOnlyClaimsThatHoldMatchingDevices(t *testing.T) {
	s, pods := world(t, 2, 1)
	for i := range 50 {
		s.Put(theClaim(fmt.Sprintf("far-%d", i), allocated("node-b", fmt.Sprintf("gpu-%d", i)), reservedTo("x")))
	}
	for i := range 2 {
		s.Put(theClaim(fmt.Sprintf("near-%d", i), allocated("node-a", fmt.Sprintf("gpu-%d", i)), reservedTo("x")))
	}
	reads := func(t *testing.T) int {
		t.Helper()
		r := newAllocating(t, s)
		claims := 0
		r.conn.Before = func(w fakeapi.Call) error {
			if w.Verb == "get" && w.Kind == "ResourceClaim" {
				claims++
			}
			return nil
		}
		claim := s.claim("c0")
		_, err := r.allocator.allocate(t.Context(), bind(pods[0], "node-a", "here-1"), claim)
		require.ErrorContains(t, err, "no free devices")
		return claims
	}
	assert.Equal(t, 2, reads(t), "both claims on the node hold matching devices")
	claim := s.claim("c0")
	claim.Spec.Devices.Requests[0].Exactly.Count = 3
	s.Put(claim)
	assert.Zero(t, reads(t), "the node has only two devices")
}
