// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
)

// taken contains the volumes that other claims of the pod get, by name.
type taken = map[string]*corev1.PersistentVolume

// match finds a volume for each unbound claim, the smallest claim first, and adds the claims to the
// plan. Claims without a matching volume are provisioned.
func (s snapshot) match(ctx context.Context, unbound []use, p *plan) error {
	slices.SortStableFunc(unbound, bySize)
	used := taken{}
	var provisioned []use
	for _, u := range unbound {
		if ctx.Err() != nil { // A pod can have thousands of claims, and each of them can need a visit to every free volume.
			return framework.FromAPI(framework.ObjectOf(u.claim), "matching a volume", ctx.Err())
		}
		pv, err := s.find(u, used)
		if err != nil {
			return err
		}
		if pv == nil {
			provisioned = append(provisioned, u)
			p.dynamic = append(p.dynamic, u.claim)
			continue
		}
		used[pv.Name] = pv
		p.static = append(p.static, match{claim: u.claim, volume: pv})
	}
	for _, u := range provisioned {
		if err := s.checkProvision(u); err != nil {
			return err
		}
	}
	return nil
}

func bySize(a, b use) int {
	x, y := a.claim.Spec.Resources.Requests[corev1.ResourceStorage], b.claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name))
}

// begun returns whether a node was selected for the provisioning of the claim's volume. Such a claim is not matched.
func begun(claim *corev1.PersistentVolumeClaim) bool {
	return metav1.HasAnnotation(claim.ObjectMeta, volume.AnnSelectedNode)
}

// claimedBy returns whether the claimRef names exactly this claim.
func claimedBy(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID
}

// find returns the volume for the claim, or nil if one has to be provisioned. A volume
// that names the claim has priority. If that volume cannot be used on the node, find rejects
// the bind, because the PersistentVolume controller will bind the claim to it.
func (s snapshot) find(u use, used taken) (*corev1.PersistentVolume, error) {
	if begun(u.claim) {
		return nil, nil
	}
	for _, pv := range u.reserved {
		if pv.Status.Phase == corev1.VolumeBound && claimedBy(pv, u.claim) {
			// The PersistentVolume controller has decided. The cache does not hold the fields of a bound
			// volume that a match needs.
			return pv, s.checkAffinity(pv)
		}
	}
	// The PersistentVolume controller finds only volumes with the access modes of the claim.
	reserved := slices.DeleteFunc(slices.Clone(u.reserved), func(pv *corev1.PersistentVolume) bool { return !volume.CheckAccessModes(u.claim, pv) })
	pv, err := volume.FindMatchingVolume(u.claim, reserved, nil, used, true, true)
	if pv != nil {
		return pv, s.checkAffinity(pv)
	}
	if err == nil {
		pv, err = s.smallest(u, used)
	}
	if err != nil {
		return nil, framework.Refuse(framework.ObjectOf(u.claim), "cannot match a volume: %v", err).Because(err).Advise("correct the claim")
	}
	return pv, nil
}

// smallest returns the volume that FindMatchingVolume would find for the claim among all
// available volumes of its class, ordered by name, or nil: the smallest that fits, and the first
// by name among equals. Usually the first volume that is large enough fits.
func (s snapshot) smallest(u use, used taken) (best *corev1.PersistentVolume, err error) {
	selector, claim := labels.Everything(), *u.claim
	if claim.Spec.Selector != nil { // Parsing it for each volume can need seconds: a tenant can write thousands of values.
		if selector, err = metav1.LabelSelectorAsSelector(claim.Spec.Selector); err != nil {
			return nil, err
		}
		claim.Spec.Selector = nil
	}
	enough := &corev1.PersistentVolume{}
	enough.Spec.Capacity = u.claim.Spec.Resources.Requests
	for _, on := range u.free {
		on.AscendGreaterOrEqual(enough, func(pv *corev1.PersistentVolume) bool {
			if best != nil && before(best, pv) {
				return false
			}
			fits := used[pv.Name] == nil && volume.CheckAccessModes(&claim, pv) &&
				selector.Matches(labels.Set(pv.Labels)) && s.fits(pv, &claim) // The affinity is the most expensive check.
			if fits {
				best = pv
			}
			return !fits
		})
	}
	return best, nil
}

// fits returns whether the claim can use the free volume on this node.
func (s snapshot) fits(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	here, err := s.onNode(pv)
	if err != nil {
		return false // Another volume can fit.
	}
	found, err := volume.FindMatchingVolume(claim, []*corev1.PersistentVolume{here}, s.node, nil, true, true)
	return found != nil && err == nil
}
