// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

// worldOfPlan returns a world with the objects of the plan.
func worldOfPlan(p *plan) *world {
	w := newWorld()
	for _, m := range p.static {
		w.put(m.claim)
		w.put(m.volume)
	}
	for _, claim := range p.dynamic {
		w.put(claim)
	}
	return w
}

func TestWrite_Patches(t *testing.T) {
	// A user pre-binds a volume with the claim's name and without its UID.
	preBound := volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID(""))))
	cases := map[string]struct {
		reason string
		plan   plan
		want   []patched
	}{
		"ClaimRef": {
			reason: "the patch contains only the claimRef with the UID and the annotation of the controller",
			plan:   plan{static: []match{{claim: theClaim(), volume: volumeNamed("pv", gen.Label("keep", "me"), gen.Annotation("keep", "me"))}}},
			want: []patched{{kind: "PersistentVolume", name: "pv", body: `{
				"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}, "resourceVersion": "20"},
				"spec": {"claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "data",
					"uid": "claim-data", "resourceVersion": "10"}}}`}},
		},
		"ClaimRefOfUser": {
			reason: "the patch of a pre-bound volume contains only the UID",
			plan:   plan{static: []match{{claim: theClaim(), volume: preBound}}},
			want: []patched{{kind: "PersistentVolume", name: "pv", body: `{
				"metadata": {"resourceVersion": "20"},
				"spec": {"claimRef": {"uid": "claim-data", "resourceVersion": "10"}}}`}},
		},
		"SelectedNode": {
			reason: "the patch contains only selected-node",
			plan:   plan{dynamic: []*corev1.PersistentVolumeClaim{theClaim(gen.Annotation("keep", "me"))}},
			want: []patched{{kind: "PersistentVolumeClaim", name: "data", body: `{
				"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node-a"}, "resourceVersion": "10"}}`}},
		},
		"AllRight": {
			reason: "correct values are not written again",
			plan: plan{
				static:  []match{{claim: theClaim(), volume: volumeNamed("pv", gen.ClaimRef(theClaim()))}},
				dynamic: []*corev1.PersistentVolumeClaim{claimNamed("logs", gen.SelectedNode("node-a"))},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := worldOfPlan(&tc.plan)
			require.NoError(t, pluginIn(w).write(t.Context(), contextFor(thePod()), tc.plan), tc.reason)
			require.Len(t, w.patches, len(tc.want), tc.reason)
			for i, want := range tc.want {
				assert.JSONEq(t, want.body, w.patches[i].body, tc.reason)
				assert.Equal(t, want.kind+" "+want.name, w.patches[i].kind+" "+w.patches[i].name)
			}
		})
	}
}

// Like kube-scheduler, write sets the claimRefs before selected-node.
func TestWrite_Order(t *testing.T) {
	inCache := []*corev1.PersistentVolume{volumeNamed("pv1"), volumeNamed("pv2")}
	claims := []*corev1.PersistentVolumeClaim{claimNamed("c"), claimNamed("d")}
	before := []any{inCache[0].DeepCopy(), inCache[1].DeepCopy(), claims[0].DeepCopy(), claims[1].DeepCopy()}
	pl := plan{
		static:  []match{{claim: claimNamed("a"), volume: inCache[0]}, {claim: claimNamed("b"), volume: inCache[1]}},
		dynamic: claims,
	}
	w := worldOfPlan(&pl)
	require.NoError(t, pluginIn(w).write(t.Context(), contextFor(thePod()), pl))
	var order []string
	for _, p := range w.patches {
		order = append(order, p.name)
	}
	assert.Equal(t, []string{"pv1", "pv2", "c", "d"}, order)
	assert.Equal(t, []string{"a", "b"}, w.checks, "the claims are checked before the volumes are written")
	after := []any{inCache[0], inCache[1], claims[0], claims[1]}
	assert.Equal(t, before, after, "the objects in the cache do not change")
}

func TestWrite_Fails(t *testing.T) {
	claims := schema.GroupResource{Resource: "persistentvolumeclaims"}
	cases := map[string]struct {
		reason string
		err    error
		want   framework.Kind
	}{
		"Conflict": {reason: "the cache is behind another write", err: apierrors.NewConflict(claims, "pv2", errors.New("changed")), want: framework.KindWait},
		"NotFound": {reason: "the cache is behind the deletion", err: apierrors.NewNotFound(claims, "pv2"), want: framework.KindWait},
		"Unknown":  {reason: "an unknown error is Prebind's own failure", err: errors.New("boom"), want: framework.KindInternal},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pl := plan{
				static:  []match{{claim: claimNamed("a"), volume: volumeNamed("pv1")}, {claim: claimNamed("b"), volume: volumeNamed("pv2")}},
				dynamic: []*corev1.PersistentVolumeClaim{claimNamed("c")},
			}
			w := worldOfPlan(&pl)
			w.fail = func(name string) error {
				if name == "pv2" {
					return tc.err
				}
				return nil
			}
			err := pluginIn(w).write(t.Context(), contextFor(thePod()), pl)
			require.ErrorIs(t, err, tc.err)
			assert.True(t, frameworktest.IsKind(err, tc.want), "%s: %v", tc.reason, err)
			assert.Equal(t, "PersistentVolume pv2", framework.AsError(Name, err).Object.String())
			assert.Len(t, w.patches, 2, "nothing is written after a failure")
		})
	}
}

// The cache can hold a deleted claim. A volume that is bound to a deleted claim cannot be used
// again.
func TestWrite_ChecksTheClaimBeforeItWritesTheVolume(t *testing.T) {
	cases := map[string]*corev1.PersistentVolumeClaim{
		"Gone":     nil,
		"Replaced": theClaim(gen.UID("claim-2"), gen.Version("30")),
	}
	for name, live := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(volumeNamed("pv"))
			if live != nil {
				w.put(live)
			}
			pl := plan{static: []match{{claim: theClaim(), volume: volumeNamed("pv")}}}
			err := pluginIn(w).write(t.Context(), contextFor(thePod()), pl)
			assert.True(t, frameworktest.IsKind(err, framework.KindWait), "the bind decides again: %v", err)
			assert.Empty(t, w.patches)
		})
	}
}

// TestWrite_MissingSelectedNode: after a write of the attempt, selected-node can be missing because the
// cache is behind, or because the provisioner has removed it.
func TestWrite_MissingSelectedNode(t *testing.T) {
	cases := map[string]struct {
		reason  string
		live    *corev1.PersistentVolumeClaim
		written bool
		want    framework.Kind
		applied int
	}{
		"First":   {reason: "the attempt has not written yet", live: theClaim(), applied: 1},
		"Behind":  {reason: "the API server has a newer claim", live: theClaim(gen.SelectedNode("node-a"), gen.Version("30")), written: true, want: framework.KindWait},
		"Deleted": {reason: "the API server has no claim", written: true, want: framework.KindWait},
		"Removed": {reason: "the cache has the newest claim", live: theClaim(), written: true, want: refuse},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			if tc.live != nil {
				w.put(tc.live)
			}
			bc := contextFor(thePod())
			bc.Written = tc.written
			err := pluginIn(w).write(t.Context(), bc, plan{dynamic: []*corev1.PersistentVolumeClaim{theClaim()}})
			assert.Equal(t, tc.applied, w.applied, tc.reason)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			assert.True(t, frameworktest.IsKind(err, tc.want), "%s: %v", tc.reason, err)
		})
	}
}
