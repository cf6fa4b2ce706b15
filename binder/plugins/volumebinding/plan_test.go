// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/volumes"
	"github.com/prebind/prebind/test/gen"
)

// snap returns a snapshot with the objects. If they do not include a pod or a node, it uses the
// pod web and node-a in zone z1.
func snap(objects ...client.Object) snapshot {
	s := snapshot{pod: thePod(), node: theNode()}
	free, volumesOf := NewFreeVolumes(), map[string]*corev1.PersistentVolume{}
	claims, classes := map[string]*corev1.PersistentVolumeClaim{}, map[string]*storagev1.StorageClass{}
	reserved, drivers := map[string][]*corev1.PersistentVolume{}, map[string]*storagev1.CSIDriver{}
	s.capacities = map[string][]*storagev1.CSIStorageCapacity{}
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Pod:
			s.pod = o
		case *corev1.PersistentVolumeClaim:
			claims[o.Name] = o
		case *corev1.PersistentVolume:
			volumesOf[o.Name] = o
			free.OnAdd(o, false)
			if ref := o.Spec.ClaimRef; ref != nil {
				reserved[ref.Name] = append(reserved[ref.Name], o)
			}
		case *storagev1.StorageClass:
			classes[o.Name] = o
		case *corev1.Node:
			s.node = o
		case *storagev1.CSINode:
			s.csiNode = o
		case *storagev1.CSIDriver:
			drivers[o.Name] = o
		case *storagev1.CSIStorageCapacity:
			if reachableFrom(o, s.node.Labels) {
				s.capacities[o.StorageClassName] = append(s.capacities[o.StorageClassName], o)
			}
		}
	}
	for _, ref := range volumes.ClaimsOf(s.pod) {
		u := use{ClaimRef: ref, claim: claims[ref.Name]}
		if u.claim != nil {
			u.volume, u.reserved = volumesOf[u.claim.Spec.VolumeName], reserved[ref.Name]
			u.class = classes[volume.GetPersistentVolumeClaimClass(u.claim)]
		}
		if u.class != nil {
			u.free = free.of(u.class.Name, s.node.Labels[corev1.LabelHostname])
			u.driver = drivers[u.class.Provisioner]
		}
		s.uses = append(s.uses, u)
	}
	return s
}

var (
	// local provisions volumes, and static does not.
	local  = gen.StorageClass("local", "csi.example.com")
	static = gen.StorageClass("static", volume.NotSupportedProvisioner)
)

// decideCase is a snapshot and the expected decision.
type decideCase struct {
	reason  string
	objects []client.Object
	// static is claim=volume, in order; dynamic is claims, in order.
	static, dynamic []string
	// want is the kind of the error, about its object, and says a part of it. Without want, the plan waits
	// for the object if about is set.
	want        framework.Kind
	about, says string
}

func (tc decideCase) check(t *testing.T) {
	t.Helper()
	pl, err := findPodVolumes(t.Context(), snap(tc.objects...))
	if tc.want != "" {
		require.Error(t, err, tc.reason)
		assert.True(t, frameworktest.IsKind(err, tc.want), "%s: %v", tc.reason, err)
		refusal := framework.AsError(Name, err)
		assert.Equal(t, tc.about, refusal.Object.String())
		assert.Contains(t, refusal.Error(), tc.says)
		if tc.want == framework.KindRefuse {
			assert.NotEmpty(t, refusal.Advice, "every rejection has advice")
		}
		return
	}
	require.NoError(t, err, tc.reason)
	assert.Equal(t, tc.about, pl.wait.Object.String(), tc.reason)
	assert.Contains(t, pl.wait.For, tc.says)
	if tc.about != "" {
		bc := contextFor(thePod())
		framework.Extend(bc, pl)
		verdict, err := (&Plugin{}).PreFlight(bc)
		require.NoError(t, err)
		assert.Empty(t, verdict.Writes, "the wait comes before all writes")
		return
	}
	var static, dynamic []string
	for _, m := range pl.static {
		static = append(static, m.claim.Name+"="+m.volume.Name)
	}
	for _, claim := range pl.dynamic {
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
			reason: "the controller will bind the claim to the volume that names it", want: framework.KindRefuse,
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
			reason: "volumes that are in use, on another node, not available, being deleted or of another class do not fit", want: framework.KindRefuse,
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
			reason:  "the volume was just created",
			objects: []client.Object{theClaim(ofStatic), static, volumeNamed("pv", inStatic, gen.VolumePhase(corev1.VolumePending))},
			about:   "PersistentVolume pv", says: "make the volume available",
		},
		"StaticPendingElsewhere": {
			reason: "the pending volume does not fit the node", want: framework.KindRefuse,
			objects: []client.Object{theClaim(ofStatic), static, volumeNamed("pv", inStatic, gen.OnNode("node-b"), gen.VolumePhase(corev1.VolumePending))},
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
			reason: "the selector of the claim is invalid", want: framework.KindRefuse,
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
			reason: "the volume is being provisioned on another node", want: framework.KindRefuse,
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
			reason: "upstream two-unbound-pvcs,partial-match: one volume is for one claim", want: framework.KindRefuse,
			objects: []client.Object{twoClaims, larger, claimNamed("logs", ofStatic), static, volumeNamed("pv", inStatic, gen.Capacity("5Gi"))},
			about:   "PersistentVolumeClaim default/data", says: "no volume of StorageClass static",
		},
		"OneMatchedOneProvisioned": {
			reason:  "upstream two-unbound-pvcs,one-matched,one-provisioned",
			objects: []client.Object{twoClaims, larger, claimNamed("logs"), local, static, volumeNamed("pv", inStatic, gen.Capacity("5Gi"))},
			static:  []string{"data=pv"}, dynamic: []string{"logs"},
		},
		"ExcludedTopology": {
			reason: "upstream volume-topology-unsatisfied: no volume can be provisioned for the node", want: framework.KindRefuse,
			objects: []client.Object{theClaim(), gen.StorageClass("local", "csi.example.com", gen.AllowedTopology(corev1.LabelTopologyZone, "z2"))},
			about:   "PersistentVolumeClaim default/data", says: "allowedTopologies",
		},
		"FirstProblemWins": {
			reason: "the claims are checked in the pod's order", want: framework.KindRefuse,
			objects: []client.Object{twoClaims, claimNamed("logs", gen.Terminating()), local},
			about:   "PersistentVolumeClaim default/data", says: "does not exist",
		},
	}
	for name, tc := range cases {
		t.Run(name, tc.check)
	}
}
