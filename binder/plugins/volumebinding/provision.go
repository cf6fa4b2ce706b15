// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
)

// checkProvision checks that a volume can be made for the claim on the node. It
// follows checkVolumeProvisions of kube-scheduler's VolumeBinding.
func (s snapshot) checkProvision(claim *corev1.PersistentVolumeClaim) *framework.Error {
	class := s.classes[volume.GetPersistentVolumeClaimClass(claim)]
	switch {
	case class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner:
		return framework.Refuse(object(claim), "no volume of its class %s can be used on the node %s, and the class makes none", class.Name, s.node.Name).
			Advise("choose a node with a free volume that fits, or add one")
	case !admitsTopology(class.AllowedTopologies, s.node.Labels):
		return framework.Refuse(object(claim), "the allowedTopologies of its class %s exclude the node %s", class.Name, s.node.Name).
			Advise("choose a node that they admit")
	}
	if _, begun := claim.Annotations[volume.AnnSelectedNode]; begun {
		// The volume is in the making on this node, and may be the very one that
		// took the capacity. The provisioner says so if there was not enough.
		return nil
	}
	return s.checkCapacity(claim, class)
}

// checkCapacity checks that the driver of the class published enough capacity
// for the claim where the node can reach it. It follows hasEnoughCapacity of
// kube-scheduler's VolumeBinding. Like there, claims are looked at one by one,
// since one pool may stand behind several objects.
func (s snapshot) checkCapacity(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *framework.Error {
	size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok || !publishesCapacity(s.drivers[class.Provisioner]) {
		return nil
	}
	reachable := false
	for _, c := range s.capacities[class.Name] {
		if !reachableFrom(c, s.node.Labels) {
			continue
		}
		reachable = true
		if limit := volumeLimit(c); limit != nil && limit.Value() >= size.Value() {
			return nil
		}
	}
	if !reachable {
		return framework.Refuse(object(claim), "the driver %s has no storage of its class %s that the node %s can reach", class.Provisioner, class.Name, s.node.Name).
			Advise("choose a node where the driver runs and has storage (CSIStorageCapacity objects say where)")
	}
	return framework.Refuse(object(claim), "the driver %s has less than %s left in its class %s for the node %s", class.Provisioner, &size, class.Name, s.node.Name).
		Advise("choose a node with more free storage (CSIStorageCapacity objects say where)")
}

// unserved completes the refusal of a claim that no volume exists for and none can be
// made for. It is a wait where a volume only has to become available. Otherwise its
// cause tells the kinds of which an object that is not in the snapshot could serve
// the claim. A claim that has selected-node is not matched with volumes any more.
func (s snapshot) unserved(claim *corev1.PersistentVolumeClaim, taken map[string]*corev1.PersistentVolume, refusal *framework.Error) error {
	if _, begun := claim.Annotations[volume.AnnSelectedNode]; begun {
		return refusal
	}
	if pv, err := s.smallest(claim, taken, true); err == nil && pv != nil {
		return framework.Wait(object(pv), "waiting for the PersistentVolume controller to make it available; no other volume fits %s", describe(claim)).
			Advise("repeat the Binding")
	}
	kinds := []string{volumeKind}
	if publishesCapacity(s.drivers[s.classes[volume.GetPersistentVolumeClaimClass(claim)].Provisioner]) {
		kinds = append(kinds, capacityKind)
	}
	return refusal.Because(lackError{kinds: kinds})
}

// publishesCapacity says whether the provisioner is a CSI driver that wants its
// capacity to be looked at.
func publishesCapacity(driver *storagev1.CSIDriver) bool {
	return driver != nil && driver.Spec.StorageCapacity != nil && *driver.Spec.StorageCapacity
}

// volumeLimit is how large a volume may be at most; nil is unknown, which means
// none.
func volumeLimit(c *storagev1.CSIStorageCapacity) *resource.Quantity {
	if c.MaximumVolumeSize != nil {
		return c.MaximumVolumeSize
	}
	return c.Capacity
}

// reachableFrom says whether a node with these labels can use the capacity.
// Without a topology, no node can.
func reachableFrom(c *storagev1.CSIStorageCapacity, nodeLabels map[string]string) bool {
	if c.NodeTopology == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
	return err == nil && selector.Matches(labels.Set(nodeLabels))
}

// admitsTopology says whether a class with these allowedTopologies may make a
// volume for a node with these labels: one of the terms has to match, and a
// term matches when the node has one of the values of each of its keys. No
// terms admit every node; a term without expressions admits none. This is
// MatchTopologySelectorTerms, which no public Kubernetes library has.
func admitsTopology(terms []corev1.TopologySelectorTerm, nodeLabels map[string]string) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(term corev1.TopologySelectorTerm) bool {
		if len(term.MatchLabelExpressions) == 0 {
			return false
		}
		for _, expression := range term.MatchLabelExpressions {
			value, ok := nodeLabels[expression.Key]
			if !ok || !slices.Contains(expression.Values, value) {
				return false
			}
		}
		return true
	})
}
