// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// updateCase is a plan, and the state of the API server before and after its writes.
type updateCase struct {
	upstream
	static  []match
	dynamic claimList
	// volumes and claims are the objects in the API server, in addition to the claims of the plan.
	volumes volumeList
	claims  claimList
	// claimed contains the expected claim of each volume, and chosen the node of each claim.
	claimed, chosen map[string]string
	// patches is the expected number of patch requests.
	patches int
}

func (tc updateCase) run(t *testing.T) {
	t.Helper()
	w := worldOf()
	for _, m := range tc.static {
		w.put(m.claim)
	}
	for _, o := range append(append(list(tc.volumes...), list(tc.dynamic...)...), list(tc.claims...)...) {
		w.put(o)
	}
	err := pluginIn(w).write(t.Context(), onNode(testPod(), node1), plan{static: tc.static, dynamic: tc.dynamic})
	tc.check(t, err)
	assert.Len(t, w.patches, tc.patches)
	claimed, nodes := map[string]string{}, map[string]string{}
	for _, pv := range fakeapi.All(w.server, &corev1.PersistentVolume{}) {
		if ref := pv.Spec.ClaimRef; ref != nil {
			claimed[pv.Name] = ref.Namespace + "/" + ref.Name + " " + string(ref.UID)
		}
	}
	for _, claim := range fakeapi.All(w.server, &corev1.PersistentVolumeClaim{}) {
		if node := claim.Annotations[volume.AnnSelectedNode]; node != "" {
			nodes[claim.Name] = node
		}
	}
	if tc.claimed == nil {
		tc.claimed = map[string]string{}
	}
	if tc.chosen == nil {
		tc.chosen = map[string]string{}
	}
	assert.Equal(t, tc.claimed, claimed)
	assert.Equal(t, tc.chosen, nodes)
}

func TestUpstreamBindAPIUpdate(t *testing.T) {
	a := match{claim: unboundPVC, volume: pvNode1a}
	b := match{claim: unboundPVC2, volume: pvNode1b}
	const forA, forB = "default/unbound-pvc uid-unbound-pvc", "default/unbound-pvc2 uid-unbound-pvc2"
	newer2 := upClaim("provisioned-pvc2", "1Gi", provisionerClass, at("2"))
	conflict := upstream{want: framework.KindWait, says: "the cache to show another write"}
	cases := map[string]updateCase{
		"nothing-to-bind-empty": {},
		"one-binding":           {static: []match{a}, volumes: volumeList{pvNode1a}, claimed: map[string]string{"pv-node1a": forA}, patches: 1},
		"two-bindings": {
			static: []match{a, b}, volumes: volumeList{pvNode1a, pvNode1b}, patches: 2,
			claimed: map[string]string{"pv-node1a": forA, "pv-node1b": forB},
		},
		"api-already-updated": {
			static: []match{{claim: unboundPVC, volume: pvNode1aBound}}, volumes: volumeList{pvNode1aBound},
			claimed: map[string]string{"pv-node1a": forA},
		},
		"api-update-failed": {
			static: []match{a, b}, patches: 2,
			volumes:  volumeList{pvNode1a, upVolume("pv-node1b", "node1", "10G", waitClass, at("2"), ownedBy(unboundPVC2))},
			claimed:  map[string]string{"pv-node1a": forA, "pv-node1b": forB},
			upstream: conflict,
		},
		"one-provisioned-pvc": {dynamic: claimList{provisionedPVC}, chosen: map[string]string{"provisioned-pvc": "node1"}, patches: 1},
		"provision-api-update-failed": {
			dynamic: claimList{provisionedPVC, provisionedPVC2}, claims: claimList{newer2}, upstream: conflict, patches: 2,
			chosen: map[string]string{"provisioned-pvc": "node1"},
		},
		"binding-succeed, provision-api-update-failed": {
			static: []match{a}, volumes: volumeList{pvNode1a}, claimed: map[string]string{"pv-node1a": forA},
			dynamic: claimList{provisionedPVC, provisionedPVC2}, claims: claimList{newer2}, upstream: conflict, patches: 3,
			chosen: map[string]string{"provisioned-pvc": "node1"},
		},
	}
	checkTable(t, cases,
		"nothing-to-bind-nil", "nothing-to-bind-bindings-nil", "nothing-to-bind-provisionings-nil", "nothing-to-bind-empty", "one-binding",
		"two-bindings", "api-already-updated", "api-update-failed", "one-provisioned-pvc", "provision-api-update-failed",
		"binding-succeed, provision-api-update-failed")

	// The upstream case, with a volume that was claimed for another claim.
	cases["api-update-failed, another claim"] = updateCase{
		static: []match{a, b}, patches: 2, upstream: conflict,
		volumes: volumeList{pvNode1a, upVolume("pv-node1b", "node1", "10G", waitClass, at("2"), ownedBy(unboundPVC))},
		claimed: map[string]string{"pv-node1a": forA, "pv-node1b": forA},
	}
	for name, tc := range cases {
		t.Run(name, tc.run)
	}
}

// bindPodCase is a bind.
type bindPodCase struct {
	upstream
	volumes volumeList
	claims  claimList
	node    *corev1.Node
	// later runs after the writes, if the bind waits.
	later func(w *world)
}

func (tc bindPodCase) run(t *testing.T) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		pod, node := testPod(tc.claims...), tc.node
		if node == nil {
			node = node1
		}
		w := worldOf(pod, node, node2)
		for _, o := range append(list(tc.volumes...), list(tc.claims...)...) {
			w.put(o)
		}
		outcome := newReplica(t, w, "r").start(t, pod, node.Name)
		synctest.Wait()
		if tc.later != nil {
			require.Empty(t, outcome, "the bind waits")
			tc.later(w)
		}
		var err error
		if o := <-outcome; o.Err != nil {
			err = o.Err
		}
		tc.check(t, err)
	})
}

func TestUpstreamBindPodVolumes(t *testing.T) {
	after := func(u upstream, later func(w *world)) bindPodCase {
		return bindPodCase{volumes: volumeList{pvNode1a}, claims: claimList{unboundPVC}, upstream: u, later: later}
	}
	overtime := upstream{want: framework.KindWait, says: "waiting for the PersistentVolume controller"}
	cases := map[string]bindPodCase{
		"nothing-to-bind-empty": {},
		"already-bound":         {volumes: volumeList{pvNode1aBound}, claims: claimList{boundPVCNode1a}},
		"binding-static-pv-succeeds-after-time": after(upstream{}, func(w *world) {
			w.put(upClaim("unbound-pvc", "1G", waitClass, gen.BoundToVolume("pv-node1a"), at("300")))
		}),
		"binding-dynamic-pv-succeeds-after-time": {
			claims: claimList{provisionedPVC},
			later: func(w *world) {
				w.put(upVolume("dynamic-pv", "node1", "1G", waitClass, ownedBy(provisionedPVC)))
				w.put(upClaim("provisioned-pvc", "1Gi", provisionerClass, chosen, gen.BoundToVolume("dynamic-pv"), at("300")))
			},
		},
		"bound-by-pv-controller-before-bind": {
			claims:   claimList{upClaim("unbound-pvc", "1G", waitClass, gen.BoundToVolume("pv-node1a"), at("2"))},
			volumes:  volumeList{upVolume("pv-node1a", "node1", "5G", waitClass, at("2"), ownedBy(unboundPVC))},
			upstream: upstream{differs: "there is no plan from before, so the claim is bound"},
		},
		"pod-deleted-after-time": after(upstream{want: framework.KindStale, says: "not found"}, func(w *world) { w.remove(testPod()) }),
		"binding-times-out":      after(overtime, nil),
		"binding-fails":          {volumes: volumeList{pvNode1b}, claims: claimList{unboundPVC2}, upstream: overtime},
		"check-fails":            after(refused("the claim does not exist"), func(w *world) { w.remove(unboundPVC) }),
		"node-affinity-fails": {
			volumes: volumeList{pvNode1aBound}, claims: claimList{boundPVCNode1a}, node: gen.Node("node1"),
			upstream: refused("excludes node node1"),
		},
		"node-affinity-fails-dynamic-provisioning": {
			volumes: volumeList{pvNode1a}, claims: claimList{selectedNodePVC}, upstream: refused("PersistentVolume pv-node2: its node affinity excludes"),
			later: func(w *world) {
				w.put(upVolume("pv-node2", "node2", "1G", waitClass, ownedBy(provisionedPVC)))
				w.put(upClaim("provisioned-pvc", "1Gi", provisionerClass, chosen, gen.BoundToVolume("pv-node2"), at("300")))
			},
		},
	}
	checkTable(t, cases,
		"nothing-to-bind-nil", "nothing-to-bind-empty", "already-bound", "binding-static-pv-succeeds-after-time",
		"binding-dynamic-pv-succeeds-after-time", "bound-by-pv-controller-before-bind", "pod-deleted-after-time", "binding-times-out",
		"binding-fails", "check-fails", "node-affinity-fails", "node-affinity-fails-dynamic-provisioning")
	for name, tc := range cases {
		t.Run(name, tc.run)
	}
}
