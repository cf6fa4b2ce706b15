// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

func TestCheckCapacity(t *testing.T) {
	driver := gen.CSIDriver("csi.example.com", true)
	here := gen.ReachableWith(corev1.LabelTopologyZone, "z1")
	cases := map[string]decideCase{
		"NotADriver":  {reason: "the provisioner publishes nothing", objects: []client.Object{theClaim()}},
		"OtherDriver": {reason: "another driver's setting does not apply", objects: []client.Object{theClaim(), gen.CSIDriver("other", true)}},
		"NotSaid":     {reason: "the driver does not request capacity checks", objects: []client.Object{theClaim(), &storagev1.CSIDriver{ObjectMeta: driver.ObjectMeta}}},
		"NoRequest": {reason: "the claim requests no storage", objects: []client.Object{driver, func() client.Object {
			claim := theClaim()
			claim.Spec.Resources.Requests = nil
			return claim
		}()}},
		"EnoughInOneOfTwo": {
			reason: "one pool is enough",
			objects: []client.Object{
				theClaim(), driver, gen.CSIStorageCapacity("c", "local", here, gen.Amount("1Mi")), gen.CSIStorageCapacity("d", "local", here, gen.Amount("1Gi")),
			},
		},
		"LargestVolumeAlone": {
			reason:  "the amount need not be known",
			objects: []client.Object{theClaim(), driver, gen.CSIStorageCapacity("c", "local", here, gen.LargestVolume("1Gi"))},
		},
		"OtherNode": {
			reason: "another node can reach the capacity", says: "reports no storage",
			objects: []client.Object{theClaim(), driver, gen.CSIStorageCapacity("c", "local", gen.ReachableWith(corev1.LabelTopologyZone, "z2"), gen.Amount("1Gi"))},
		},
		"SmallVolumes": {
			reason: "the largest volume counts, not the amount", says: "less than 1Gi",
			objects: []client.Object{theClaim(), driver, gen.CSIStorageCapacity("c", "local", here, gen.Amount("1Gi"), gen.LargestVolume("1Mi"))},
		},
		"NoAmount": {
			reason: "the driver reports no amount", says: "less than 1Gi",
			objects: []client.Object{theClaim(), driver, gen.CSIStorageCapacity("c", "local", here)},
		},
		"TwoHalves": {
			reason: "a volume is in one pool", says: "less than 1Gi",
			objects: []client.Object{
				theClaim(), driver, gen.CSIStorageCapacity("c", "local", here, gen.Amount("512Mi")), gen.CSIStorageCapacity("d", "local", here, gen.Amount("512Mi")),
			},
		},
		"NoTopology": {
			reason: "no node can reach the capacity", says: "reports no storage",
			objects: []client.Object{theClaim(), driver, gen.CSIStorageCapacity("c", "local", gen.Unreachable(), gen.Amount("9Gi"))},
		},
		"Begun": {
			reason:  "the volume being provisioned may have used the capacity",
			objects: []client.Object{theClaim(gen.SelectedNode("node-a")), driver},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.objects = append(tc.objects, local); tc.says == "" {
				tc.dynamic = []string{"data"}
			} else {
				tc.about = "PersistentVolumeClaim default/data"
			}
			tc.check(t)
		})
	}
}

// A class can have a capacity for each node.
func TestSetup_ListsCapacities(t *testing.T) {
	here := gen.SelectedNode("node-a")
	cases := map[string]struct {
		reason string
		claims []client.Object
		lists  int
	}{
		"ManyClaims": {reason: "the claims share one list of their class", claims: []client.Object{theClaim(), claimNamed("logs"), claimNamed("tmp")}, lists: 1},
		"Begun":      {reason: "the capacity does not matter", claims: []client.Object{theClaim(here), claimNamed("logs", here), claimNamed("tmp", here)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(append(tc.claims, local, gen.CSIDriver("csi.example.com", true), gen.CSIStorageCapacity("c", "local", gen.Amount("1Gi")))...)
			cached, lists := w.cache.Connect(), 0
			cached.Before = func(call fakeapi.Call) error {
				if call.Kind == "CSIStorageCapacityList" {
					lists++
				}
				return nil
			}
			w.cached = cached
			bc := contextFor(thePod(gen.UsesClaim("logs"), gen.UsesClaim("tmp")))
			_, err := pluginIn(w).pass(t.Context(), bc)
			require.NoError(t, err)
			assert.Len(t, planned(t, bc).dynamic, 3)
			assert.Equal(t, tc.lists, lists, tc.reason)
		})
	}
}

func TestAdmitsTopology(t *testing.T) {
	one := func(key string, values ...string) corev1.TopologySelectorLabelRequirement {
		return corev1.TopologySelectorLabelRequirement{Key: key, Values: values}
	}
	term := func(expressions ...corev1.TopologySelectorLabelRequirement) corev1.TopologySelectorTerm {
		return corev1.TopologySelectorTerm{MatchLabelExpressions: expressions}
	}
	node := map[string]string{"zone": "z1", "rack": "r1", "empty": ""}
	cases := map[string]struct {
		reason string
		terms  []corev1.TopologySelectorTerm
		want   bool
	}{
		"None":         {reason: "no terms admit every node", want: true},
		"EmptyTerm":    {reason: "a term without expressions admits none", terms: []corev1.TopologySelectorTerm{term()}},
		"NoLabelEmpty": {reason: "a missing label is not an empty one", terms: []corev1.TopologySelectorTerm{term(one("row", ""))}},
		"EmptyLabel":   {reason: "an empty label matches an empty value", terms: []corev1.TopologySelectorTerm{term(one("empty", ""))}, want: true},
		"AllKeys":      {reason: "every key of a term must match", terms: []corev1.TopologySelectorTerm{term(one("zone", "z0", "z1"), one("rack", "r1"))}, want: true},
		"NotAllKeys":   {reason: "every key of a term must match", terms: []corev1.TopologySelectorTerm{term(one("zone", "z1"), one("rack", "r2"))}},
		"SecondTerm":   {reason: "one term is enough", terms: []corev1.TopologySelectorTerm{term(one("zone", "z2")), term(one("rack", "r1"))}, want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, admitsTopology(tc.terms, node), tc.reason)
		})
	}
}
