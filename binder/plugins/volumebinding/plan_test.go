// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

var (
	// local provisions volumes, and static does not.
	local  = gen.StorageClass("local", "csi.example.com")
	static = gen.StorageClass("static", volume.NotSupportedProvisioner)
)

// decideCase has the objects of a pass and the expected decision. Without a pod or a node, the pod web is bound to node-a in zone z1.
type decideCase struct {
	reason  string
	objects []client.Object
	// static is claim=volume, in order; dynamic is claims, in order. Without both, the other fields are compared.
	static, dynamic []string
	writes          []string
	wait            string
	// patches are the requests of PreBind.
	patches []patched
	// about is the object of a rejection, which says a part of it.
	about, says string
}

func (tc decideCase) check(t *testing.T) {
	t.Helper()
	pod, node := thePod(), theNode()
	for _, o := range tc.objects {
		switch o := o.(type) {
		case *corev1.Pod:
			pod = o
		case *corev1.Node:
			node = o
		}
	}
	w, bc := newWorld(tc.objects...), onNode(pod, node)
	p := pluginIn(w)
	verdict, err := p.pass(t.Context(), bc)
	assert.Empty(t, w.server.Writes(), "PreFlight never writes")
	assert.Zero(t, w.server.Reads(), "the decision is based on the cache")
	if tc.about != "" {
		require.True(t, frameworktest.IsKind(err, refuse), "%s: %v", tc.reason, err)
		refusal := framework.AsError(Name, err)
		assert.Equal(t, tc.about, refusal.Object.String())
		assert.Contains(t, refusal.Error(), tc.says)
		assert.NotEmpty(t, refusal.Advice, "every rejection has advice")
		return
	}
	require.NoError(t, err, tc.reason)
	if tc.static == nil && tc.dynamic == nil {
		assert.Equal(t, tc.writes, verdict.Writes, tc.reason)
		lasts := func(write string) bool { return !strings.HasPrefix(write, "reserve ") }
		assert.Equal(t, slices.ContainsFunc(tc.writes, lasts), verdict.Permanent, "only a reservation is rolled back")
		assert.Equal(t, tc.wait, verdict.Wait.String(), tc.reason)
		if len(verdict.Writes) > 0 {
			require.NoError(t, p.PreBind(t.Context(), bc))
		}
		require.Len(t, w.patches, len(tc.patches), tc.reason)
		for i, want := range tc.patches {
			assert.JSONEq(t, want.body, w.patches[i].body, tc.reason)
			assert.Equal(t, want.kind+" "+want.name, w.patches[i].kind+" "+w.patches[i].name)
		}
		return
	}
	var static, dynamic []string
	for _, m := range planned(t, bc).static {
		static = append(static, m.claim.Name+"="+m.volume.Name)
	}
	for _, claim := range planned(t, bc).dynamic {
		dynamic = append(dynamic, claim.Name)
	}
	assert.Equal(t, tc.static, static, tc.reason)
	assert.Equal(t, tc.dynamic, dynamic, tc.reason)
}

// These are the cases that TestSmallest_FindsTheSameVolumeAsUpstream does not have.
func TestDecideOnVolumes(t *testing.T) {
	twoClaims := thePod(gen.UsesClaim("logs"))
	ofStatic := gen.OfClass("static")
	inStatic := gen.VolumeOfClass("static")
	larger := theClaim(ofStatic, gen.Requests("5Gi"))
	cases := map[string]decideCase{
		"StaticPreBoundVolume": {
			reason: "the volume that names the claim takes precedence over a smaller one",
			objects: []client.Object{
				theClaim(), local, volumeNamed("small"), volumeNamed("own", gen.Capacity("9Gi"), gen.ClaimRef(theClaim()), gen.VolumePhase(corev1.VolumeBound)),
			},
			static: []string{"data=own"},
		},
		"StaticReservedElsewhere": {
			reason:  "the controller will bind the claim to the volume that names it",
			objects: []client.Object{theClaim(), local, volumeNamed("own", gen.ClaimRef(theClaim()), gen.OnNode("node-b")), volumeNamed("free")},
			about:   "PersistentVolume own", says: "excludes node node-a",
		},
		"StaticReservedOfAnotherClass": {
			reason:  "the PersistentVolume controller ignores the class of a volume that names the claim",
			objects: []client.Object{theClaim(), local, volumeNamed("own", inStatic, gen.ClaimRef(theClaim()))},
			static:  []string{"data=own"},
		},
		"StaticReservedTooSmall": {
			reason:  "a volume that names the claim but does not fit is ignored",
			objects: []client.Object{theClaim(gen.Requests("2Gi")), local, volumeNamed("own", gen.ClaimRef(theClaim())), volumeNamed("fits", gen.Capacity("2Gi"))},
			static:  []string{"data=fits"},
		},
		"StaticReservedForEarlierClaim": {
			reason:  "the claimRef is compared by UID",
			objects: []client.Object{theClaim(), local, volumeNamed("old", gen.ClaimRef(theClaim(gen.UID("claim-0")))), volumeNamed("pv")},
			static:  []string{"data=pv"},
		},
		"StaticUnusable": {
			reason: "volumes that are in use, on another node, not available, being deleted or of another class do not fit",
			objects: []client.Object{
				theClaim(ofStatic), static,
				volumeNamed("taken", inStatic, gen.ClaimRef(claimNamed("logs"))),
				volumeNamed("elsewhere", inStatic, gen.OnNode("node-b")),
				volumeNamed("released", inStatic, gen.VolumePhase(corev1.VolumeReleased)),
				volumeNamed("going", inStatic, gen.Terminating()),
				volumeNamed("other"),
			},
			about: "PersistentVolumeClaim default/data", says: "static",
		},
		"StaticPending": {
			reason:  "the volume was just created, and becomes available before the rejection",
			objects: []client.Object{theClaim(ofStatic), static, volumeNamed("pv", inStatic, gen.VolumePhase(corev1.VolumePending))},
			about:   "PersistentVolumeClaim default/data", says: "static",
		},
		"StaticPendingAndAnother": {
			reason:  "a larger volume is available",
			objects: []client.Object{theClaim(), local, volumeNamed("pv", gen.VolumePhase("")), volumeNamed("large", gen.Capacity("9Gi"))},
			static:  []string{"data=large"},
		},
		"DynamicInsteadOfPending": {
			reason:  "a new volume can be provisioned instead",
			objects: []client.Object{theClaim(), local, volumeNamed("pv", gen.VolumePhase(corev1.VolumePending))},
			dynamic: []string{"data"},
		},
		"BadSelector": {
			reason: "the selector of the claim is invalid",
			objects: []client.Object{local, volumeNamed("pv"), func() *corev1.PersistentVolumeClaim {
				claim := theClaim()
				claim.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "?"}}}
				return claim
			}()},
			about: "PersistentVolumeClaim default/data", says: "correct the claim",
		},
		"SelectedThisNode": {
			reason:  "the volume is being provisioned, so no other volume is matched",
			objects: []client.Object{theClaim(gen.SelectedNode("node-a")), local, volumeNamed("pv")},
			dynamic: []string{"data"},
		},
		"SelectedOtherNode": {
			reason:  "the volume is being provisioned on another node",
			objects: []client.Object{theClaim(gen.SelectedNode("node-b")), local, volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "node-b",
		},
		"TwoClaims": {
			reason: "upstream two-unbound-pvcs,order-by-size: the smaller claim gets the smaller volume",
			objects: []client.Object{
				twoClaims, larger, claimNamed("logs", ofStatic), static,
				volumeNamed("pv", inStatic, gen.Capacity("5Gi")), volumeNamed("pv2", inStatic, gen.Capacity("9Gi")),
			},
			static: []string{"logs=pv", "data=pv2"},
		},
		"TwoClaimsOneVolume": {
			reason:  "upstream two-unbound-pvcs,partial-match: one volume is for one claim",
			objects: []client.Object{twoClaims, larger, claimNamed("logs", ofStatic), static, volumeNamed("pv", inStatic, gen.Capacity("5Gi"))},
			about:   "PersistentVolumeClaim default/data", says: "no volume of StorageClass static",
		},
		"OneMatchedOneProvisioned": {
			reason:  "upstream two-unbound-pvcs,one-matched,one-provisioned",
			objects: []client.Object{twoClaims, larger, claimNamed("logs"), local, static, volumeNamed("pv", inStatic, gen.Capacity("5Gi"))},
			static:  []string{"data=pv"}, dynamic: []string{"logs"},
		},
		"ExcludedTopology": {
			reason:  "upstream volume-topology-unsatisfied: no volume can be provisioned for the node",
			objects: []client.Object{theClaim(), gen.StorageClass("local", "csi.example.com", gen.AllowedTopology(corev1.LabelTopologyZone, "z2"))},
			about:   "PersistentVolumeClaim default/data", says: "allowedTopologies",
		},
		"FirstProblemWins": {
			reason:  "the claims are checked in the pod's order",
			objects: []client.Object{twoClaims, claimNamed("logs", gen.Terminating()), local},
			about:   "PersistentVolumeClaim default/data", says: "does not exist",
		},
	}
	for name, tc := range cases {
		t.Run(name, tc.check)
	}
}
