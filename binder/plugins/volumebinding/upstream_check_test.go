// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/prebind/prebind/test/gen"
)

// checkCase is a state after the writes of the attempt. The plugin checks it once, with the pod of the
// claims.
type checkCase struct {
	upstream
	static  []match
	dynamic claimList
	volumes volumeList
	claims  claimList
	node    *corev1.Node
	csiNode *storagev1.CSINode
	// bound means that all claims are bound. If it is false and there is no error, the bind waits.
	bound bool
}

func (tc checkCase) run(t *testing.T) {
	t.Helper()
	node := tc.node
	if node == nil {
		node = node1
	}
	uses := tc.dynamic
	for _, m := range tc.static {
		uses = append(uses, m.claim)
	}
	w := worldOf(node)
	for _, o := range append(list(tc.volumes...), list(tc.claims...)...) {
		w.put(o)
	}
	if tc.csiNode != nil {
		w.put(tc.csiNode)
	}
	p, bc := pluginIn(w), onNode(testPod(uses...), node)
	bc.Written = true
	verdict, err := p.pass(t.Context(), bc)
	if err == nil && len(verdict.Writes) > 0 {
		err = p.PreBind(t.Context(), bc)
	}
	tc.check(t, err)
	assert.Empty(t, w.patches, "the attempt writes nothing again")
	if err == nil {
		assert.Equal(t, tc.bound, verdict.Wait.For == "", "waits for %v", verdict.Wait)
	}
}

const ownVolume = "the claimRef of the volume names another claim; kube-scheduler does not check that"

func TestUpstreamCheckBindings(t *testing.T) {
	a := match{claim: unboundPVC, volume: pvNode1aBound}
	b := match{claim: unboundPVC2, volume: pvNode1bBound}
	ofMade := upVolume("pv-bound", "node1", "1G", waitClass, ownedBy(provisionedPVC))
	cases := map[string]checkCase{
		"nothing-to-bind":        {bound: true},
		"binding-bound":          {static: []match{a}, volumes: volumeList{pvNode1aBound}, claims: claimList{boundPVCNode1a}, bound: true},
		"binding-prebound":       {static: []match{a}, volumes: volumeList{pvNode1aBound}, claims: claimList{preboundPVCNode1a}},
		"binding-unbound":        {static: []match{a}, volumes: volumeList{pvNode1aBound}, claims: claimList{unboundPVC}},
		"binding-pvc-not-exists": {static: []match{a}, volumes: volumeList{pvNode1aBound}, upstream: refused("the claim does not exist")},
		"binding-pv-not-exists":  {static: []match{a}, claims: claimList{boundPVCNode1a}, upstream: refused("PersistentVolume pv-node1a does not exist")},
		"binding-claimref-nil": {
			static: []match{a}, claims: claimList{boundPVCNode1a}, upstream: refused("does not name the claim"),
			volumes: volumeList{upVolume("pv-node1a", "node1", "5G", waitClass, at("2"))},
		},
		"binding-claimref-uid-empty": {
			static: []match{a}, claims: claimList{boundPVCNode1a}, bound: true,
			upstream: upstream{differs: "a claimRef without a UID names the claim, as for every bound claim"},
			volumes:  volumeList{upVolume("pv-node1a", "node1", "5G", waitClass, at("2"), ownedBy(upClaim("unbound-pvc", "1G", waitClass, gen.UID(""))))},
		},
		"binding-one-bound,one-unbound": {
			static: []match{a, b}, volumes: volumeList{pvNode1aBound, pvNode1bBound}, claims: claimList{boundPVCNode1a, unboundPVC2},
		},
		"provisioning-pvc-bound": {
			dynamic: claimList{selectedNodePVC}, volumes: volumeList{pvBound}, claims: claimList{provisionedPVCBound},
			upstream: upstream{want: refuse, says: "does not name the claim", differs: ownVolume},
		},
		"provisioning-pvc-unbound":    {dynamic: claimList{selectedNodePVC}, claims: claimList{selectedNodePVC}},
		"provisioning-pvc-not-exists": {dynamic: claimList{selectedNodePVC}, upstream: refused("the claim does not exist")},
		"provisioning-pvc-annotations-nil": {
			dynamic: claimList{selectedNodePVC}, upstream: refused("requests another node"),
			claims: claimList{upClaim("provisioned-pvc", "1Gi", provisionerClass, at("2"))},
		},
		"provisioning-pvc-selected-node-dropped": {
			dynamic: claimList{selectedNodePVC}, upstream: refused("requests another node"),
			claims: claimList{upClaim("provisioned-pvc", "1Gi", provisionerClass, at("2"), gen.Annotation("another", "one"))},
		},
		"provisioning-pvc-selected-node-wrong-node": {
			dynamic: claimList{selectedNodePVC}, upstream: refused("provisioned on node wrong-node"),
			claims: claimList{upClaim("provisioned-pvc", "1Gi", provisionerClass, at("2"), gen.SelectedNode("wrong-node"))},
		},
		"binding-bound-provisioning-unbound": {
			static: []match{a}, dynamic: claimList{selectedNodePVC},
			volumes: volumeList{pvNode1aBound}, claims: claimList{boundPVCNode1a, selectedNodePVC},
		},
		"tolerate-provisioning-pvc-bound-pv-not-found": {dynamic: claimList{selectedNodePVC}, claims: claimList{provisionedPVCBound}},
	}
	checkTable(t, cases,
		"nothing-to-bind-nil", "nothing-to-bind-bindings-nil", "nothing-to-bind-provisionings-nil", "nothing-to-bind", "binding-bound",
		"binding-prebound", "binding-unbound", "binding-pvc-not-exists", "binding-pv-not-exists", "binding-claimref-nil",
		"binding-claimref-uid-empty", "binding-one-bound,one-unbound", "provisioning-pvc-bound", "provisioning-pvc-unbound",
		"provisioning-pvc-not-exists", "provisioning-pvc-annotations-nil", "provisioning-pvc-selected-node-dropped",
		"provisioning-pvc-selected-node-wrong-node", "binding-bound-provisioning-unbound", "tolerate-provisioning-pvc-bound-pv-not-found")

	// The upstream case, with a volume whose claimRef names the claim.
	cases["provisioning-pvc-bound, claimRef agrees"] = checkCase{
		dynamic: claimList{selectedNodePVC}, volumes: volumeList{ofMade}, claims: claimList{provisionedPVCBound}, bound: true,
	}
	for name, tc := range cases {
		t.Run(name, tc.run)
	}
}

func TestUpstreamCheckBindingsWithCSIMigration(t *testing.T) {
	toUnbound := migrationPV(gceSource, unboundPVC)
	notMigrated := migrationPV(rbdSource, unboundPVC)
	static := []match{{claim: unboundPVC, volume: toUnbound}}
	claims, volumes := claimList{unboundPVC}, volumeList{toUnbound}
	cases := map[string]checkCase{
		"provisioning-pvc-bound": {
			dynamic: claimList{provMigrationPVC}, volumes: volumeList{migrationPV(gceSource, boundMigrationPVC)}, claims: claimList{provMigrationPVC},
			node: node1Zone1, csiNode: csiNode1Migrated, upstream: upstream{want: refuse, says: "does not name the claim", differs: ownVolume},
		},
		"binding-node-pv-same-zone":   {static: static, volumes: volumes, claims: claims, node: node1Zone1, csiNode: csiNode1Migrated},
		"binding-without-csinode":     {static: static, volumes: volumes, claims: claims, node: node1Zone1},
		"binding-non-migrated-plugin": {static: static, volumes: volumes, claims: claims, node: node1Zone1, csiNode: csiNode1Not},
		"binding-node-pv-in-different-zones": {
			static: static, volumes: volumes, claims: claims, node: node1Zone2, csiNode: csiNode1Migrated, upstream: refused("excludes node node1"),
		},
		"binding-node-pv-different-zones-migration-off": {
			static: []match{{claim: unboundPVC, volume: notMigrated}}, volumes: volumeList{notMigrated}, claims: claims,
			node: node1Zone2, csiNode: csiNode1Migrated,
		},
	}
	checkTable(t, cases,
		"provisioning-pvc-bound", "binding-node-pv-same-zone", "binding-without-csinode", "binding-non-migrated-plugin",
		"binding-node-pv-in-different-zones", "binding-node-pv-different-zones-migration-off")

	// The upstream case, with a volume whose claimRef names the claim.
	cases["provisioning-pvc-bound, claimRef agrees"] = checkCase{
		dynamic: claimList{provMigrationPVC}, volumes: volumeList{migrationPV(gceSource, provMigrationPVC)}, claims: claimList{provMigrationPVC},
		node: node1Zone1, csiNode: csiNode1Migrated, bound: true,
	}
	for name, tc := range cases {
		t.Run(name, tc.run)
	}
}
