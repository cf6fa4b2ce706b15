// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
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
		"Nothing": {reason: "an empty plan writes nothing"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := worldOfPlan(&tc.plan)
			require.NoError(t, pluginIn(w).write(t.Context(), "node-a", &tc.plan), tc.reason)
			require.Len(t, w.patches, len(tc.want), tc.reason)
			for i, want := range tc.want {
				assert.JSONEq(t, want.body, w.patches[i].body, tc.reason)
				assert.Equal(t, want.kind+" "+want.name, w.patches[i].kind+" "+w.patches[i].name)
			}
		})
	}
}

// Like kube-scheduler, write sets the claimRefs before selected-node. The plan then contains the
// responses of the API server.
func TestWrite_Order(t *testing.T) {
	inCache := []*corev1.PersistentVolume{volumeNamed("pv1"), volumeNamed("pv2")}
	claims := []*corev1.PersistentVolumeClaim{claimNamed("c"), claimNamed("d")}
	before := []any{inCache[0].DeepCopy(), inCache[1].DeepCopy(), claims[0].DeepCopy(), claims[1].DeepCopy()}
	pl := plan{
		static:  []match{{claim: claimNamed("a"), volume: inCache[0]}, {claim: claimNamed("b"), volume: inCache[1]}},
		dynamic: []*corev1.PersistentVolumeClaim{claims[0], claims[1]},
	}
	w := worldOfPlan(&pl)
	require.NoError(t, pluginIn(w).write(t.Context(), "node-a", &pl))

	var order []string
	for _, p := range w.patches {
		order = append(order, p.name)
	}
	assert.Equal(t, []string{"pv1", "pv2", "c", "d"}, order)
	stored, ok := fakeapi.Get(w.server, volumeNamed("pv2"))
	require.True(t, ok)
	assert.Equal(t, stored.ResourceVersion, pl.static[1].volume.ResourceVersion)
	assert.Equal(t, "claim-b", string(pl.static[1].volume.Spec.ClaimRef.UID))
	chosen, ok := fakeapi.Get(w.server, claimNamed("d"))
	require.True(t, ok)
	assert.Equal(t, chosen.ResourceVersion, pl.dynamic[1].ResourceVersion)
	assert.Equal(t, "node-a", pl.dynamic[1].Annotations[volume.AnnSelectedNode])
	after := []any{inCache[0], inCache[1], claims[0], claims[1]}
	assert.Equal(t, before, after, "the objects in the cache do not change")

	w.patches = nil
	require.NoError(t, pluginIn(w).write(t.Context(), "node-a", &pl))
	assert.Empty(t, w.patches, "a second call writes nothing")
}

func TestWrite_Fails(t *testing.T) {
	claims := schema.GroupResource{Resource: "persistentvolumeclaims"}
	cases := map[string]struct {
		reason string
		err    error
		want   framework.Kind
	}{
		"Conflict":   {reason: "another client wrote first, and the next call decides again", err: apierrors.NewConflict(claims, "pv2", errors.New("changed")), want: framework.KindWait},
		"NotFound":   {reason: "the object was deleted", err: apierrors.NewNotFound(claims, "pv2"), want: framework.KindRefuse},
		"Overloaded": {reason: "the failure is temporary", err: apierrors.NewTooManyRequestsError("slow down"), want: framework.KindWait},
		"Forbidden":  {reason: "a missing permission is Prebind's own failure", err: apierrors.NewForbidden(claims, "pv2", errors.New("rbac")), want: framework.KindInternal},
		"Unknown":    {reason: "an unknown error is Prebind's own failure", err: errors.New("boom"), want: framework.KindInternal},
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
			err := pluginIn(w).write(t.Context(), "node-a", &pl)
			require.ErrorIs(t, err, tc.err)
			assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
			assert.Equal(t, framework.Object{Kind: "PersistentVolume", Name: "pv2"}, framework.AsError(Name, err).Object)
			assert.Len(t, w.patches, 2, "nothing is written after a failure")
			for _, p := range w.patches {
				var body struct {
					Metadata struct{ ResourceVersion string }
				}
				require.NoError(t, json.Unmarshal([]byte(p.body), &body))
				assert.NotEmpty(t, body.Metadata.ResourceVersion, "every write is conditional")
			}
		})
	}
}
