// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
)

// checkProvision checks that a volume can be provisioned for the claim on the node. It follows
// checkVolumeProvisions of kube-scheduler's VolumeBinding.
func (s snapshot) checkProvision(u use) error {
	claim, class := u.claim, u.class
	switch {
	case class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner:
		return framework.Refuse(framework.ObjectOf(claim), "no volume of StorageClass %s fits on node %s, and the class does not provision volumes", class.Name, s.node.Name).
			Advise("choose a node with a matching volume, or create one")
	case !admitsTopology(class.AllowedTopologies, s.node.Labels):
		return framework.Refuse(framework.ObjectOf(claim), "the allowedTopologies of StorageClass %s exclude node %s", class.Name, s.node.Name).
			Advise("choose a node in the allowed topologies")
	}
	if begun(claim) {
		// The volume is being provisioned on this node and may have used the capacity. If the
		// capacity is insufficient, the provisioner removes selected-node.
		return nil
	}
	return s.checkCapacity(u)
}

// checkCapacity checks that the driver of the class published enough capacity for the claim on
// the node. Like hasEnoughCapacity of kube-scheduler's VolumeBinding, it checks each claim
// alone, because several objects can describe the same pool.
func (s snapshot) checkCapacity(u use) error {
	claim, class := u.claim, u.class
	size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok || !publishesCapacity(u.driver) {
		return nil
	}
	for _, c := range s.capacities[class.Name] {
		// Without any of the two, no volume fits.
		if limit := cmp.Or(c.MaximumVolumeSize, c.Capacity); limit != nil && limit.Value() >= size.Value() {
			return nil
		}
	}
	if len(s.capacities[class.Name]) == 0 {
		return framework.Refuse(framework.ObjectOf(claim), "CSI driver %s reports no storage of StorageClass %s for node %s", class.Provisioner, class.Name, s.node.Name).
			Advise("choose a node with storage; see the CSIStorageCapacity objects")
	}
	return framework.Refuse(framework.ObjectOf(claim), "CSI driver %s reports less than %s of storage in StorageClass %s for node %s", class.Provisioner, &size, class.Name, s.node.Name).
		Advise("choose a node with more storage; see the CSIStorageCapacity objects")
}

// publishesCapacity returns whether the CSI driver publishes its capacity for scheduling.
func publishesCapacity(driver *storagev1.CSIDriver) bool {
	return driver != nil && driver.Spec.StorageCapacity != nil && *driver.Spec.StorageCapacity
}

// reachableFrom returns whether a node with these labels can use the capacity. Without a
// topology, no node can.
func reachableFrom(c *storagev1.CSIStorageCapacity, nodeLabels map[string]string) bool {
	if c.NodeTopology == nil {
		return false
	}
	for key, value := range c.NodeTopology.MatchLabels { // To parse the selector of each node's capacity would take milliseconds.
		if nodeLabels[key] != value {
			return false
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
	return err == nil && selector.Matches(labels.Set(nodeLabels))
}

// admitsTopology returns whether the allowedTopologies admit a node with these labels. One term
// must match, and a term matches if the node has one of the values of each of its keys. No
// terms admit every node; a term without expressions admits none. No public Kubernetes library
// contains MatchTopologySelectorTerms.
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
