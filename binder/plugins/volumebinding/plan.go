// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// snapshot is the input of a decision. Objects that do not exist are missing from the maps.
type snapshot struct {
	pod *corev1.Pod
	target
	// incomplete means that the decision also needs objects that the cache does not hold.
	incomplete bool
	// claims contains the claims by name.
	claims map[string]*corev1.PersistentVolumeClaim
	// volumes contains the volumes that the claims name, by name.
	volumes map[string]*corev1.PersistentVolume
	// inUse is a ReadWriteOncePod claim that another pod uses.
	inUse *claimUse
	// classes contains the classes of the unbound claims, by name.
	classes map[string]*storagev1.StorageClass
	// reserved contains the volumes that name an unbound claim, by the claim's name.
	reserved map[string][]*corev1.PersistentVolume
	// free contains the volumes that a claim can be matched with, by class. It omits volumes that
	// only other nodes can use.
	free map[string][]shelf
	// drivers contains the CSI drivers among the provisioners of the classes, by name.
	drivers map[string]*storagev1.CSIDriver
	// capacities contains the published capacities by class.
	capacities map[string][]*storagev1.CSIStorageCapacity
}

// newSnapshot returns a snapshot of the pod and the node only.
func newSnapshot(pod *corev1.Pod, node *corev1.Node) snapshot {
	return snapshot{
		pod:        pod,
		target:     target{node: node},
		claims:     map[string]*corev1.PersistentVolumeClaim{},
		volumes:    map[string]*corev1.PersistentVolume{},
		classes:    map[string]*storagev1.StorageClass{},
		reserved:   map[string][]*corev1.PersistentVolume{},
		free:       map[string][]shelf{},
		drivers:    map[string]*storagev1.CSIDriver{},
		capacities: map[string][]*storagev1.CSIStorageCapacity{},
	}
}

// plan contains the writes and the waits of PreBind for the claims of a pod.
type plan struct {
	// static contains the claims that get an existing volume.
	static []match
	// dynamic contains the claims whose volume must be provisioned, or is being provisioned.
	dynamic []*corev1.PersistentVolumeClaim
	// exclusive contains the ReadWriteOncePod claims.
	exclusive []*corev1.PersistentVolumeClaim
}

// match is a claim and the volume that it gets.
type match struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// done returns whether every claim is bound.
func (p plan) done() bool { return len(p.static) == 0 && len(p.dynamic) == 0 }

// record records the writes and the waits of PreBind.
func (p plan) record(bc *framework.BindContext) {
	for _, m := range p.static {
		bc.ExpectWait(framework.Waiting{Object: object(m.claim), For: "the PersistentVolume controller to bind it to PersistentVolume " + m.volume.Name})
		if _, changed, err := volume.GetBindVolumeToClaim(m.volume, m.claim); err == nil && changed {
			bc.Intend("%s would set the claimRef of PersistentVolume %s to %s and wait until the claim is bound", Name, m.volume.Name, describe(m.claim))
			continue
		}
		bc.Intend("%s would wait until %s is bound to PersistentVolume %s", Name, describe(m.claim), m.volume.Name)
	}
	for _, claim := range p.dynamic {
		bc.ExpectWait(framework.Waiting{Object: object(claim), For: "provisioning on " + bc.Node.Name + by(claim)})
		if claim.Annotations[volume.AnnSelectedNode] == "" {
			bc.Intend("%s would set selected-node of %s to %s and wait for provisioning", Name, describe(claim), bc.Node.Name)
			continue
		}
		bc.Intend("%s would wait for provisioning of %s on %s", Name, describe(claim), bc.Node.Name)
	}
}

// findPodVolumes returns the plan, or an error if the pod cannot use its volumes on this node.
// It follows GetPodVolumeClaims and FindPodVolumes of
// kube-scheduler's VolumeBinding; docs/volumebinding.md lists the differences.
func findPodVolumes(s snapshot) (plan, error) {
	var unbound, exclusive []*corev1.PersistentVolumeClaim
	for _, ref := range volumes.ClaimsOf(s.pod) {
		claim, err := s.usable(ref)
		if err != nil {
			return plan{}, err
		}
		if ref.IsExclusive(claim) {
			exclusive = append(exclusive, claim)
		}
		if volumes.IsBound(claim) {
			if err := s.checkBound(claim); err != nil {
				return plan{}, err
			}
			continue
		}
		if err := s.checkDelayed(claim); err != nil {
			return plan{}, err
		}
		unbound = append(unbound, claim)
	}
	p, err := s.match(unbound)
	if err == nil && s.inUse != nil {
		err = s.inUse.refuse()
	}
	p.exclusive = exclusive
	return p, err
}

// match finds a volume for each unbound claim, the smallest claim first. Claims without a
// matching volume are provisioned.
func (s snapshot) match(unbound []*corev1.PersistentVolumeClaim) (plan, error) {
	var p plan
	var toMatch []*corev1.PersistentVolumeClaim
	for _, claim := range unbound {
		if _, chosen := claim.Annotations[volume.AnnSelectedNode]; chosen {
			p.dynamic = append(p.dynamic, claim)
		} else {
			toMatch = append(toMatch, claim)
		}
	}
	slices.SortStableFunc(toMatch, bySize)
	taken := map[string]*corev1.PersistentVolume{}
	for _, claim := range toMatch {
		pv, err := s.find(claim, taken)
		if err != nil {
			return plan{}, err
		}
		if pv == nil {
			p.dynamic = append(p.dynamic, claim)
			continue
		}
		taken[pv.Name] = pv
		p.static = append(p.static, match{claim: claim, volume: pv})
	}
	for _, claim := range p.dynamic {
		if err := s.checkProvision(claim); err != nil {
			return plan{}, s.unserved(claim, taken, err)
		}
	}
	return p, nil
}

func bySize(a, b *corev1.PersistentVolumeClaim) int {
	x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name))
}

// find returns the volume for the claim, or nil if one has to be provisioned. A volume
// that names the claim has priority. If that volume cannot be used on the node, find rejects
// the bind, because the PersistentVolume controller will bind the claim to it.
func (s snapshot) find(claim *corev1.PersistentVolumeClaim, taken map[string]*corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	invalid := func(err error) error {
		return framework.Refuse(object(claim), "cannot match a volume: %v", err).Because(err).Advise("correct the claim")
	}
	reserved, err := volume.FindMatchingVolume(claim, s.reserved[claim.Name], nil, taken, true, true)
	if err != nil {
		return nil, invalid(err)
	}
	if reserved != nil {
		return reserved, s.checkAffinity(reserved)
	}
	found, err := s.smallest(claim, taken, false)
	if err != nil {
		return nil, invalid(err)
	}
	return found, nil
}
