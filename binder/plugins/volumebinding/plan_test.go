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

	"github.com/prebind/prebind/binder/api"
	"github.com/prebind/prebind/test/gen"
)

// snap makes the snapshot of these objects: the pod web, unless there is one
// among them, on node-a in zone z1.
func snap(objects ...client.Object) snapshot {
	s := snapshot{
		pod:        thePod(),
		node:       theNode(),
		claims:     map[string]*corev1.PersistentVolumeClaim{},
		volumes:    map[string]*corev1.PersistentVolume{},
		classes:    map[string]*storagev1.StorageClass{},
		candidates: map[string][]*corev1.PersistentVolume{},
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Pod:
			s.pod = o
		case *corev1.PersistentVolumeClaim:
			s.claims[o.Name] = o
		case *corev1.PersistentVolume:
			s.volumes[o.Name] = o
			class := volume.GetPersistentVolumeClass(o)
			s.candidates[class] = append(s.candidates[class], o)
		case *storagev1.StorageClass:
			s.classes[o.Name] = o
		}
	}
	return s
}

var (
	// local makes volumes, static does not, eager binds at once.
	local  = gen.StorageClass("local", "csi.example.com")
	static = gen.StorageClass("static", volume.NotSupportedProvisioner)
	eager  = gen.StorageClass("eager", "csi.example.com", gen.Immediate())
)

func TestDecide(t *testing.T) {
	ephemeralPod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp", gen.OfClass("local")))
	ofPod := gen.OwnedBy("Pod", "web", "pod-1")
	twoClaims := thePod(gen.UsesClaim("logs"))
	ofStatic := gen.OfClass("static")
	inStatic := gen.VolumeOfClass("static")

	cases := map[string]struct {
		reason  string
		objects []client.Object
		// static is claim=volume, in order; dynamic is claims, in order.
		static, dynamic []string
		want            api.Kind
		about           string
		says            string
	}{
		"NoClaims": {
			reason:  "other volumes are none of this plugin's business",
			objects: []client.Object{gen.Pod("web", gen.EmptyDir("tmp"))},
		},
		"Missing": {
			reason: "a claim that does not exist is refused", want: api.KindRefuse,
			about: "PersistentVolumeClaim default/data", says: "does not exist",
		},
		"Terminating": {
			reason: "the kubelet would not start the pod", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.Terminating()), volumeNamed("pv", gen.ClaimRef(theClaim()))},
			about:   "PersistentVolumeClaim default/data", says: "being deleted",
		},
		"Lost": {
			reason: "its volume is gone", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimLost))},
			about:   "PersistentVolumeClaim default/data", says: `lost its PersistentVolume "pv"`,
		},
		"EphemeralOwned": {
			reason:  "a claim that was made for this pod is its own",
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp", ofPod), local},
			dynamic: []string{"web-tmp"},
		},
		"EphemeralOfAnother": {
			reason: "a claim that only has the name is somebody else's", want: api.KindRefuse,
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp"), local},
			about:   "PersistentVolumeClaim default/web-tmp", says: "not made for this pod",
		},
		"EphemeralOfEarlierPod": {
			reason: "the owner is compared by UID", want: api.KindRefuse,
			objects: []client.Object{ephemeralPod, claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-0")), local},
			about:   "PersistentVolumeClaim default/web-tmp", says: "not made for this pod",
		},
		"EphemeralNotYet": {
			reason: "the controller will make it soon", want: api.KindWait,
			objects: []client.Object{ephemeralPod, local},
			about:   "PersistentVolumeClaim default/web-tmp", says: `"tmp"`,
		},
		"Bound": {
			reason:  "nothing is to be done",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-a"))},
		},
		"BoundWithPhasePending": {
			reason:  "the phase may lag behind; the annotation counts",
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"), gen.ClaimPhase(corev1.ClaimPending)), volumeNamed("pv", gen.ClaimRef(theClaim()))},
		},
		"BoundElsewhere": {
			reason: "the volume cannot be reached from the node", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-b"))},
			about:   "PersistentVolume pv", says: "excludes the node node-a",
		},
		"BoundVolumeMissing": {
			reason: "the claim is as good as lost", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv"))},
			about:   "PersistentVolumeClaim default/data", says: "pv does not exist",
		},
		"BoundVolumeOfAnother": {
			reason: "the volume is for another claim", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(claimNamed("logs")))},
			about:   "PersistentVolumeClaim default/data", says: "another claim",
		},
		"BoundVolumeOfEarlierClaim": {
			reason: "the claimRef is compared by UID", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim(gen.UID("claim-0"))))},
			about:   "PersistentVolumeClaim default/data", says: "another claim",
		},
		"Immediate": {
			reason: "it is bound without a pod, so the scheduler should have waited for it", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.OfClass("eager")), eager, volumeNamed("pv", gen.VolumeOfClass("eager"))},
			about:   "PersistentVolumeClaim default/data", says: "not bound yet",
		},
		"NoClass": {
			reason: "no class means Immediate", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.OfClass("")), volumeNamed("pv", gen.VolumeOfClass(""))},
			about:   "PersistentVolumeClaim default/data", says: "not bound yet",
		},
		"PreBoundClaim": {
			reason: "a claim that names its volume waits for nobody's node", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.NamesVolume("pv")), local, volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "not bound yet",
		},
		"Static": {
			reason:  "a volume that exists goes before one that is made",
			objects: []client.Object{theClaim(), local, volumeNamed("pv", gen.OnNode("node-a"))},
			static:  []string{"data=pv"},
		},
		"StaticPreBoundVolume": {
			reason: "the volume that names the claim goes before a smaller one",
			objects: []client.Object{
				theClaim(), local, volumeNamed("small"), volumeNamed("own", gen.Capacity("9Gi"), gen.ClaimRef(theClaim()), gen.VolumePhase(corev1.VolumeBound)),
			},
			static: []string{"data=own"},
		},
		"StaticSmallestVolume": {
			reason: "the smallest that fits is taken",
			objects: []client.Object{
				theClaim(gen.Requests("2Gi")), local,
				volumeNamed("large", gen.Capacity("5Gi")), volumeNamed("fits", gen.Capacity("3Gi")), volumeNamed("small", gen.Capacity("1Gi")),
			},
			static: []string{"data=fits"},
		},
		"StaticUnusable": {
			reason: "volumes that are taken, elsewhere, not available, going or of another class do not fit", want: api.KindRefuse,
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
		"StaticTwoCompete": {
			reason: "the smaller claim chooses first and no volume is given twice",
			objects: []client.Object{
				twoClaims, local, theClaim(gen.Requests("2Gi")), claimNamed("logs", gen.Requests("1Gi")),
				volumeNamed("pv2", gen.Capacity("2Gi")), volumeNamed("pv1", gen.Capacity("1Gi")),
			},
			static: []string{"logs=pv1", "data=pv2"},
		},
		"StaticAndDynamic": {
			reason: "one volume for two claims: the other one is made",
			objects: []client.Object{
				twoClaims, local, theClaim(), claimNamed("logs"), volumeNamed("pv"),
			},
			static: []string{"data=pv"}, dynamic: []string{"logs"},
		},
		"StaticOneTooFew": {
			reason: "one volume for two claims of a class that makes none", want: api.KindRefuse,
			objects: []client.Object{
				twoClaims, static, theClaim(ofStatic), claimNamed("logs", ofStatic), volumeNamed("pv", inStatic),
			},
			about: "PersistentVolumeClaim default/logs", says: "node-a",
		},
		"BadSelector": {
			reason: "a selector that cannot be read is the claim's fault", want: api.KindRefuse,
			objects: []client.Object{local, volumeNamed("pv"), func() *corev1.PersistentVolumeClaim {
				claim := theClaim()
				claim.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "?"}}}
				return claim
			}()},
			about: "PersistentVolumeClaim default/data", says: "correct the claim",
		},
		"Dynamic": {
			reason:  "a volume is made when none exists",
			objects: []client.Object{theClaim(), local}, dynamic: []string{"data"},
		},
		"DynamicNoProvisioner": {
			reason: "the class makes no volumes", want: api.KindRefuse,
			objects: []client.Object{theClaim(ofStatic), static},
			about:   "PersistentVolumeClaim default/data", says: "node-a",
		},
		"DynamicEmptyProvisioner": {
			reason: "the class makes no volumes", want: api.KindRefuse,
			objects: []client.Object{theClaim(), gen.StorageClass("local", "")},
			about:   "PersistentVolumeClaim default/data", says: "makes none",
		},
		"TopologyAllowed": {
			reason:  "the node is in an allowed zone",
			objects: []client.Object{theClaim(), gen.StorageClass("local", "csi", gen.AllowedTopology(corev1.LabelTopologyZone, "z0", "z1"))},
			dynamic: []string{"data"},
		},
		"TopologyExcluded": {
			reason: "the provisioner would not make it here", want: api.KindRefuse,
			objects: []client.Object{theClaim(), gen.StorageClass("local", "csi", gen.AllowedTopology(corev1.LabelTopologyZone, "z2"))},
			about:   "PersistentVolumeClaim default/data", says: "allowedTopologies",
		},
		"SelectedThisNode": {
			reason:  "it is being made already, and no other volume is taken for it",
			objects: []client.Object{theClaim(gen.SelectedNode("node-a")), local, volumeNamed("pv")},
			dynamic: []string{"data"},
		},
		"SelectedOtherNode": {
			reason: "its volume is being made elsewhere", want: api.KindRefuse,
			objects: []client.Object{theClaim(gen.SelectedNode("node-b")), local, volumeNamed("pv")},
			about:   "PersistentVolumeClaim default/data", says: "node-b",
		},
		"SameClaimTwice": {
			reason:  "a claim in two volumes of the pod is one claim",
			objects: []client.Object{thePod(gen.UsesClaim("data")), theClaim(), local, volumeNamed("pv"), volumeNamed("pv2")},
			static:  []string{"data=pv"},
		},
		"FirstProblemWins": {
			reason: "the claims are looked at in the pod's order", want: api.KindRefuse,
			objects: []client.Object{twoClaims, claimNamed("logs", gen.Terminating()), local},
			about:   "PersistentVolumeClaim default/data", says: "does not exist",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pl, err := decide(snap(tc.objects...))
			if tc.want != "" {
				require.Error(t, err, tc.reason)
				assert.True(t, api.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				told := api.AsError(Name, err)
				assert.Equal(t, tc.about, told.Object.String())
				assert.Contains(t, told.Error(), tc.says)
				if tc.want == api.KindRefuse {
					assert.NotEmpty(t, told.Advice, "a refusal says what to do")
				}
				return
			}
			require.NoError(t, err, tc.reason)
			var static, dynamic []string
			for _, m := range pl.static {
				static = append(static, m.claim.Name+"="+m.volume.Name)
			}
			for _, claim := range pl.dynamic {
				dynamic = append(dynamic, claim.Name)
			}
			assert.Equal(t, tc.static, static, tc.reason)
			assert.Equal(t, tc.dynamic, dynamic, tc.reason)
			assert.Equal(t, len(tc.static)+len(tc.dynamic) == 0, pl.done())
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
		"None":          {reason: "no terms admit every node", want: true},
		"EmptyTerm":     {reason: "a term without expressions admits none", terms: []corev1.TopologySelectorTerm{term()}},
		"Match":         {reason: "one of the values", terms: []corev1.TopologySelectorTerm{term(one("zone", "z0", "z1"))}, want: true},
		"NoMatch":       {reason: "none of the values", terms: []corev1.TopologySelectorTerm{term(one("zone", "z0"))}},
		"NoLabel":       {reason: "the node lacks the label", terms: []corev1.TopologySelectorTerm{term(one("row", "1"))}},
		"NoLabelEmpty":  {reason: "a missing label is not an empty one", terms: []corev1.TopologySelectorTerm{term(one("row", ""))}},
		"EmptyLabel":    {reason: "an empty label matches an empty value", terms: []corev1.TopologySelectorTerm{term(one("empty", ""))}, want: true},
		"AllKeys":       {reason: "every key of a term has to match", terms: []corev1.TopologySelectorTerm{term(one("zone", "z1"), one("rack", "r1"))}, want: true},
		"NotAllKeys":    {reason: "every key of a term has to match", terms: []corev1.TopologySelectorTerm{term(one("zone", "z1"), one("rack", "r2"))}},
		"SecondTerm":    {reason: "one term is enough", terms: []corev1.TopologySelectorTerm{term(one("zone", "z2")), term(one("rack", "r1"))}, want: true},
		"EmptyThenGood": {reason: "an empty term does not spoil the others", terms: []corev1.TopologySelectorTerm{term(), term(one("zone", "z1"))}, want: true},
		"NoTermMatches": {reason: "none is not enough", terms: []corev1.TopologySelectorTerm{term(one("zone", "z2")), term(one("rack", "r2"))}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, admitsTopology(tc.terms, node), tc.reason)
		})
	}
}
