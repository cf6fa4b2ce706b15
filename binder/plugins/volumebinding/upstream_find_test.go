// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// findCase is the decision for a pod on a node.
type findCase struct {
	upstream
	// pod is the pod to bind. Nil means a pod that uses the claims.
	pod    *corev1.Pod
	claims []*corev1.PersistentVolumeClaim
	// noClaims means that the claims do not exist.
	noClaims bool
	volumes  []*corev1.PersistentVolume
	node     *corev1.Node
	csiNode  *storagev1.CSINode
	// static is claim=volume, in order; dynamic is claims, in order.
	static, dynamic []string
	// wait is a part of the wait before all writes.
	wait string
	// capacity means that a driver that publishes capacity rejects the bind.
	capacity bool
}

func (tc findCase) run(t *testing.T, driver *storagev1.CSIDriver, more ...client.Object) {
	t.Helper()
	pod, node := tc.pod, tc.node
	if pod == nil {
		pod = testPod(tc.claims...)
	}
	if node == nil {
		node = node1
	}
	w := worldOf(append(more, node)...)
	for _, o := range list(tc.volumes...) {
		w.put(o)
	}
	if !tc.noClaims {
		for _, o := range list(tc.claims...) {
			w.put(o)
		}
	}
	if tc.csiNode != nil {
		w.put(tc.csiNode)
	}
	if driver != nil {
		w.put(driver)
	}
	if tc.capacity && publishesCapacity(driver) {
		tc.upstream = upstream{want: framework.KindRefuse, says: "no storage"}
	}
	bc := onNode(pod, node)
	verdict, err := pluginIn(w).pass(t.Context(), bc)
	if tc.wait != "" {
		assert.Contains(t, verdict.Wait.String(), tc.wait)
		assert.Empty(t, verdict.Writes)
	}
	tc.check(t, err)
	assert.Empty(t, w.patches)
	if err != nil || len(tc.claims) == 0 {
		return
	}
	var static, dynamic []string
	for _, m := range planned(t, bc).static {
		static = append(static, m.claim.Name+"="+m.volume.Name)
	}
	for _, claim := range planned(t, bc).dynamic {
		dynamic = append(dynamic, claim.Name)
	}
	assert.Equal(t, tc.static, static)
	assert.Equal(t, tc.dynamic, dynamic)
}

type (
	claimList  = []*corev1.PersistentVolumeClaim
	volumeList = []*corev1.PersistentVolume
)

func refused(says string) upstream { return upstream{want: framework.KindRefuse, says: says} }

func TestUpstreamFindPodVolumesWithoutProvisioning(t *testing.T) {
	ephemeral := gen.Pod("test-pod", gen.UID("test-pod"), gen.EphemeralVolume("test-volume", gen.OfClass(immediateClass)))
	generic := upClaim("test-pod-test-volume", "1G", immediateClass, gen.BoundToVolume("pv-bound"))
	owned := upClaim("test-pod-test-volume", "1G", immediateClass, gen.BoundToVolume("pv-bound"), gen.OwnedBy("Pod", "test-pod", "test-pod"))
	pvGeneric := upVolume("pv-bound", "node1", "1G", waitClass, ownedBy(owned))

	cases := map[string]findCase{
		"no-volumes":              {pod: gen.Pod("test-pod")},
		"no-pvcs":                 {pod: gen.Pod("test-pod", gen.EmptyDir("tmp"))},
		"pvc-not-found":           {claims: claimList{boundPVC}, noClaims: true, upstream: refused("does not exist")},
		"bound-pvc":               {claims: claimList{boundPVC}, volumes: volumeList{pvBound}},
		"bound-pvc,pv-not-exists": {claims: claimList{boundPVC}, upstream: refused("PersistentVolume pv-bound does not exist")},
		"prebound-pvc":            {claims: claimList{preboundPVC}, volumes: volumeList{pvNode1aBound}, upstream: refused("requests PersistentVolume")},
		"unbound-pvc,pv-same-node": {
			claims: claimList{unboundPVC}, volumes: volumeList{pvNode2, pvNode1a, pvNode1b}, static: []string{"unbound-pvc=pv-node1a"},
		},
		"unbound-pvc,pv-different-node": {claims: claimList{unboundPVC}, volumes: volumeList{pvNode2}, upstream: refused("no volume of StorageClass")},
		"two-unbound-pvcs": {
			claims: claimList{unboundPVC, unboundPVC2}, volumes: volumeList{pvNode1a, pvNode1b},
			static: []string{"unbound-pvc=pv-node1a", "unbound-pvc2=pv-node1b"},
		},
		"two-unbound-pvcs,order-by-size": {
			claims: claimList{unboundPVC2, unboundPVC}, volumes: volumeList{pvNode1a, pvNode1b},
			static: []string{"unbound-pvc=pv-node1a", "unbound-pvc2=pv-node1b"},
		},
		"two-unbound-pvcs,partial-match": {
			claims: claimList{unboundPVC, unboundPVC2}, volumes: volumeList{pvNode1a}, upstream: refused("unbound-pvc2: no volume of StorageClass"),
		},
		"one-bound,one-unbound": {
			claims: claimList{unboundPVC, boundPVC}, volumes: volumeList{pvBound, pvNode1a}, static: []string{"unbound-pvc=pv-node1a"},
		},
		"one-bound,one-unbound,no-match": {
			claims: claimList{unboundPVC, boundPVC}, volumes: volumeList{pvBound, pvNode2}, upstream: refused("unbound-pvc: no volume of StorageClass"),
		},
		"one-prebound,one-unbound": {
			claims: claimList{unboundPVC, preboundPVC}, volumes: volumeList{pvNode1a, pvNode1b}, upstream: refused("requests PersistentVolume"),
		},
		"immediate-bound-pvc":            {claims: claimList{immediateBound}, volumes: volumeList{pvBoundImmediate}},
		"immediate-bound-pvc-wrong-node": {claims: claimList{immediateBound}, volumes: volumeList{pvImmediateNode2}, upstream: refused("excludes node node1")},
		"immediate-unbound-pvc":          {claims: claimList{immediateUnbound}, upstream: refused("not bound yet")},
		"immediate-unbound-pvc,delayed-mode-bound": {
			claims: claimList{immediateUnbound, boundPVC}, volumes: volumeList{pvBound}, upstream: refused("immediate-unbound-pvc: the claim is not bound yet"),
		},
		"immediate-unbound-pvc,delayed-mode-unbound": {
			claims: claimList{immediateUnbound, unboundPVC}, upstream: refused("immediate-unbound-pvc: the claim is not bound yet"),
		},
		"generic-ephemeral,no-pvc": {
			pod: ephemeral, wait: "default/test-pod-test-volume: the ephemeral volume controller",
			upstream: upstream{differs: "kube-scheduler requeues the pod until the claim exists; Prebind waits for it"},
		},
		"generic-ephemeral,with-pvc":  {pod: ephemeral, claims: claimList{owned}, volumes: volumeList{pvGeneric}},
		"generic-ephemeral,wrong-pvc": {pod: ephemeral, claims: claimList{generic}, volumes: volumeList{pvGeneric}, upstream: refused("was not created for")},
	}
	for description, driver := range drivers() {
		for name, tc := range cases {
			t.Run(description+"/"+name, func(t *testing.T) { tc.run(t, driver) })
		}
	}
}

func TestUpstreamFindPodVolumesWithProvisioning(t *testing.T) {
	made := []string{"provisioned-pvc"}
	cases := map[string]findCase{
		"one-provisioned": {claims: claimList{provisionedPVC}, dynamic: made, capacity: true},
		"two-unbound-pvcs,one-matched,one-provisioned": {
			claims: claimList{unboundPVC, provisionedPVC}, volumes: volumeList{pvNode1a}, capacity: true,
			static: []string{"unbound-pvc=pv-node1a"}, dynamic: made,
		},
		"one-bound,one-provisioned": {claims: claimList{boundPVC, provisionedPVC}, volumes: volumeList{pvBound}, dynamic: made, capacity: true},
		"one-binding,one-selected-node": {
			claims: claimList{boundPVC, selectedNodePVC}, volumes: volumeList{pvBound}, dynamic: made,
			upstream: upstream{differs: "the volume is being provisioned on the node and may have used the capacity, so the bind is not rejected"},
		},
		"immediate-unbound-pvc": {claims: claimList{immediateUnbound}, upstream: refused("not bound yet")},
		"one-immediate-bound,one-provisioned": {
			claims: claimList{immediateBound, provisionedPVC}, volumes: volumeList{pvBoundImmediate}, dynamic: made, capacity: true,
		},
		"invalid-provisioner":         {claims: claimList{noProvisionerPVC}, upstream: refused("does not provision")},
		"volume-topology-unsatisfied": {claims: claimList{topoMismatchPVC}, upstream: refused("allowedTopologies")},
	}
	for description, driver := range drivers() {
		for name, tc := range cases {
			t.Run(description+"/"+name, func(t *testing.T) { tc.run(t, driver) })
		}
	}
}
