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
)

// snapshot is all that a decision looks at, as it was read. Objects that do not
// exist are missing from the maps.
type snapshot struct {
	pod *corev1.Pod
	target
	// claims by name.
	claims map[string]*corev1.PersistentVolumeClaim
	// volumes by name: those that the claims name.
	volumes map[string]*corev1.PersistentVolume
	// classes by name: those of the unbound claims.
	classes map[string]*storagev1.StorageClass
	// reserved are the volumes that name an unbound claim, by the claim's name.
	reserved map[string][]*corev1.PersistentVolume
	// free are the volumes that a claim can be matched with, by the class. Those that
	// only other nodes can use are left out.
	free map[string][]shelf
	// drivers by name: those provisioners of the classes that are CSI drivers.
	drivers map[string]*storagev1.CSIDriver
	// capacities by class: those of the classes whose driver publishes any.
	capacities map[string][]*storagev1.CSIStorageCapacity
}

// newSnapshot returns the snapshot that knows only what is given here.
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

// plan is what has to be written for a pod's claims on a node.
type plan struct {
	// static are the claims that get a volume that exists.
	static []match
	// dynamic are the claims that get a volume made for them. Those that have
	// selected-node already are among them.
	dynamic []*corev1.PersistentVolumeClaim
	// exclusive are the claims that no other pod may use at the same time.
	exclusive []*corev1.PersistentVolumeClaim
}

// match is a claim and the volume found for it.
type match struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// done says that every claim is bound.
func (p plan) done() bool { return len(p.static) == 0 && len(p.dynamic) == 0 }

// tell records the intended writes for a dry run.
func (p plan) tell(bc *framework.BindContext, seen *Selections) {
	for _, m := range p.static {
		bc.WouldWait(framework.Waiting{Object: object(m.claim), For: "the PersistentVolume controller to bind it to PersistentVolume " + m.volume.Name})
		if _, changed, err := volume.GetBindVolumeToClaim(m.volume, m.claim); err == nil && changed {
			bc.Intend("%s would set the claimRef of PersistentVolume %s to %s and wait for it to be bound", Name, m.volume.Name, describe(m.claim))
			continue
		}
		bc.Intend("%s would wait for %s to be bound to PersistentVolume %s", Name, describe(m.claim), m.volume.Name)
	}
	for _, claim := range p.dynamic {
		bc.WouldWait(framework.Waiting{
			Object: object(claim), For: "a volume to be made on the node " + bc.Node.Name + by(claim), Since: seen.since(claim, bc.Node.Name),
		})
		if claim.Annotations[volume.AnnSelectedNode] == "" {
			bc.Intend("%s would set selected-node of %s to %s and wait for its volume", Name, describe(claim), bc.Node.Name)
			continue
		}
		bc.Intend("%s would wait for the volume of %s, whose selected-node is %s", Name, describe(claim), bc.Node.Name)
	}
}

// decide makes the plan, or says why the pod cannot have its volumes on this
// node. It follows GetPodVolumeClaims and FindPodVolumes of kube-scheduler's
// VolumeBinding; docs/volumebinding.md lists where it does not, and why.
func decide(s snapshot) (plan, error) {
	var unbound, exclusive []*corev1.PersistentVolumeClaim
	for _, ref := range claimRefs(s.pod) {
		claim, err := s.usable(ref)
		if err != nil {
			return plan{}, err
		}
		// A generic ephemeral claim is its pod's own already.
		if ref.ephemeral == nil && slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			exclusive = append(exclusive, claim)
		}
		if isBound(claim) {
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
	p.exclusive = exclusive
	return p, err
}

// match finds a volume for each unbound claim, the smallest claim first, and
// leaves the rest to be provisioned.
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

// find returns the volume for the claim, or nil when one has to be made. A
// volume that names the claim goes before all others. Where it cannot be used on
// the node no other will do: the PersistentVolume controller binds the claim to
// it in any case.
func (s snapshot) find(claim *corev1.PersistentVolumeClaim, taken map[string]*corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	unreadable := func(err error) error {
		return framework.Refuse(object(claim), "no volume can be matched with it: %v", err).Because(err).Advise("correct the claim")
	}
	reserved, err := volume.FindMatchingVolume(claim, s.reserved[claim.Name], nil, taken, true, true)
	if err != nil {
		return nil, unreadable(err)
	}
	if reserved != nil {
		return reserved, s.checkAffinity(reserved)
	}
	found, err := s.smallest(claim, taken, false)
	if err != nil {
		return nil, unreadable(err)
	}
	return found, nil
}
