// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"
)

// smallest returns the volume that FindMatchingVolume would find for the claim among all
// available volumes of its class, ordered by name, or nil: the smallest that fits, and the first
// by name among equals. With pending, it matches the volumes that are not available yet. Usually the
// first volume that is large enough fits.
func (s snapshot) smallest(claim *corev1.PersistentVolumeClaim, taken map[string]*corev1.PersistentVolume, pending bool) (best *corev1.PersistentVolume, err error) {
	enough := &corev1.PersistentVolume{}
	enough.Spec.Capacity = claim.Spec.Resources.Requests
	for _, on := range s.free[volume.GetPersistentVolumeClaimClass(claim)] {
		on.AscendGreaterOrEqual(enough, func(pv *corev1.PersistentVolume) bool {
			if best != nil && before(best, pv) {
				return false
			}
			fits := false
			if taken[pv.Name] == nil && isPending(pv) == pending {
				fits, err = s.fits(pv, claim)
			}
			if fits {
				best = pv
			}
			return !fits && err == nil
		})
		if err != nil {
			return nil, err
		}
	}
	return best, nil
}

// fits returns whether the claim can use the free volume on this node, when the volume is available.
func (s snapshot) fits(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) (bool, error) {
	here, err := s.onNode(pv)
	if err != nil {
		return false, nil //nolint:nilerr // Another volume can fit.
	}
	available := *here
	available.Status.Phase = corev1.VolumeAvailable
	found, err := volume.FindMatchingVolume(claim, []*corev1.PersistentVolume{&available}, s.node, nil, true, true)
	return found != nil, err
}
