// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"
)

// matchedAtOnce is the batch size for FindMatchingVolume on shelves whose volumes must be
// matched one by one.
const matchedAtOnce = 64

// smallest returns the volume that FindMatchingVolume would find for the claim among all
// available volumes of its class, ordered by name, or nil: the smallest that fits, and the first
// by name among equals. With pending, it matches the volumes that are not available yet.
func (s snapshot) smallest(claim *corev1.PersistentVolumeClaim, taken map[string]*corev1.PersistentVolume, pending bool) (*corev1.PersistentVolume, error) {
	var best *corev1.PersistentVolume
	for _, on := range s.free[volume.GetPersistentVolumeClaimClass(claim)] {
		if on.pending != pending {
			continue
		}
		found, err := s.smallestOn(on, claim, taken)
		if err != nil {
			return nil, err
		}
		if found != nil && (best == nil || before(found, best)) {
			best = found
		}
	}
	return best, nil
}

// smallestOn returns the first volume of the shelf that the claim can use, or nil. Without a
// selector, only the first one that is large enough has to be checked.
func (s snapshot) smallestOn(on shelf, claim *corev1.PersistentVolumeClaim, taken map[string]*corev1.PersistentVolume) (found *corev1.PersistentVolume, err error) {
	all := on.migratable || claim.Spec.Selector != nil
	size := 1
	if all {
		size = matchedAtOnce
	}
	some := make([]*corev1.PersistentVolume, 0, size)
	enough := &corev1.PersistentVolume{}
	enough.Spec.Capacity = claim.Spec.Resources.Requests
	on.volumes.AscendGreaterOrEqual(enough, func(pv *corev1.PersistentVolume) bool {
		if taken[pv.Name] != nil {
			return true
		}
		if some = append(some, pv); len(some) < size {
			return true
		}
		found, err = s.firstOf(some, claim)
		some = some[:0]
		return all && found == nil && err == nil
	})
	if len(some) > 0 && found == nil && err == nil {
		found, err = s.firstOf(some, claim)
	}
	return found, err
}

// firstOf returns the first of the ordered volumes that the claim can use, or nil. It matches
// the volumes as translated for this node, and returns the original.
func (s snapshot) firstOf(volumes []*corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	here := make([]*corev1.PersistentVolume, 0, len(volumes))
	for _, pv := range volumes {
		onNode, err := s.onNode(pv)
		if err != nil {
			continue
		}
		if isPending(pv) {
			available := *onNode
			available.Status.Phase = corev1.VolumeAvailable
			onNode = &available
		}
		here = append(here, onNode)
	}
	found, err := volume.FindMatchingVolume(claim, here, s.node, nil, true, true)
	if found == nil || err != nil {
		return nil, err
	}
	return volumes[slices.IndexFunc(volumes, func(pv *corev1.PersistentVolume) bool { return pv.Name == found.Name })], nil
}
