// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// snapshot is the input of a decision. Objects that do not exist are missing from the maps.
type snapshot struct {
	pod *corev1.Pod
	target
	// claims contains the claims by name.
	claims map[string]*corev1.PersistentVolumeClaim
	// volumes contains the volumes that the claims name, by name.
	volumes map[string]*corev1.PersistentVolume
	// records contains the reservations of the ReadWriteOncePod claims, by the claim's name.
	records map[string]*recordVersion
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
		records:    map[string]*recordVersion{},
		classes:    map[string]*storagev1.StorageClass{},
		reserved:   map[string][]*corev1.PersistentVolume{},
		free:       map[string][]shelf{},
		drivers:    map[string]*storagev1.CSIDriver{},
		capacities: map[string][]*storagev1.CSIStorageCapacity{},
	}
}

// plan contains the writes and the waits for the claims of a pod.
type plan struct {
	// wait is a wait that comes before all writes, or zero.
	wait framework.Wait
	// exclusive contains the ReadWriteOncePod claims by UID. All binds reserve them in this order, so
	// that two binds with two claims never wait for each other.
	exclusive []reservation
	// static contains the claims that get an existing volume.
	static []match
	// dynamic contains the claims whose volume must be provisioned, or is being provisioned.
	dynamic []*corev1.PersistentVolumeClaim
	// late contains the bound claims whose volume is not in the cache yet.
	late []*corev1.PersistentVolumeClaim
}

// match is a claim and the volume that it gets.
type match struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// watched returns the volumes of the index of free volumes on which the plan depends.
func (p plan) watched() []string {
	var names []string
	if p.wait.Object.Kind == "PersistentVolume" {
		names = append(names, p.wait.Object.Name)
	}
	for _, m := range p.static {
		names = append(names, m.volume.Name)
	}
	return names
}

// verdict returns the writes of PreBind and the first wait.
func (p plan) verdict(bc *framework.BindContext) framework.Verdict {
	v := framework.Verdict{Wait: p.wait}
	waits := func(o client.Object, format string, args ...any) {
		if v.Wait == (framework.Wait{}) {
			v.Wait = framework.Wait{Object: object(o), For: fmt.Sprintf(format, args...)}
		}
	}
	writes := func(format string, args ...any) {
		v.Writes = append(v.Writes, fmt.Sprintf(format, args...))
	}
	for _, r := range p.exclusive {
		if other, ok := r.other(bc); ok {
			waits(r.claim, "the bind of pod %s, which uses the ReadWriteOncePod claim", other)
		}
	}
	if v.Wait != (framework.Wait{}) {
		return v
	}
	for _, r := range p.exclusive {
		// Without Written, the reservation can be older than the list of the pods that use the claim.
		if !bc.Written || !r.by(bc) {
			writes("reserve the ReadWriteOncePod %s", describe(r.claim))
		}
	}
	for _, m := range p.static {
		waits(m.claim, "the PersistentVolume controller to bind it to PersistentVolume %s", m.volume.Name)
		if _, changed, err := volume.GetBindVolumeToClaim(m.volume, m.claim); err != nil || changed {
			writes("set the claimRef of PersistentVolume %s to %s and wait until the claim is bound", m.volume.Name, describe(m.claim))
		}
	}
	for _, claim := range p.dynamic {
		waits(claim, "provisioning on %s%s", bc.Node.Name, by(claim))
		if claim.Annotations[volume.AnnSelectedNode] == "" {
			writes("set selected-node of %s to %s and wait for provisioning", describe(claim), bc.Node.Name)
		}
	}
	for _, claim := range p.late {
		waits(claim, "its PersistentVolume %s", claim.Spec.VolumeName)
	}
	return v
}

// by names the provisioner of the claim's volume if it is known.
func by(claim *corev1.PersistentVolumeClaim) string {
	name := claim.Annotations[volume.AnnStorageProvisioner]
	if name == "" {
		return ""
	}
	return " by " + name
}

// findPodVolumes returns the plan, or an error if the pod cannot use its volumes on this node.
// It follows GetPodVolumeClaims and FindPodVolumes of
// kube-scheduler's VolumeBinding; docs/volumebinding.md lists the differences.
func findPodVolumes(s snapshot) (plan, error) {
	var p plan
	var unbound []*corev1.PersistentVolumeClaim
	for _, ref := range volumes.ClaimsOf(s.pod) {
		claim := s.claims[ref.Name]
		if claim == nil && ref.Ephemeral != nil {
			p.wait = framework.Wait{
				Object: s.claimObject(ref),
				For:    fmt.Sprintf("the ephemeral volume controller to create the claim of volume %q", ref.Ephemeral.Name),
			}
			continue
		}
		if err := s.usable(ref, claim); err != nil {
			return plan{}, err
		}
		if ref.IsExclusive(claim) {
			p.exclusive = append(p.exclusive, reservation{claim: claim, record: s.records[claim.Name]})
		}
		pv := s.volumes[claim.Spec.VolumeName]
		var err error
		switch {
		case volumes.IsBound(claim) && pv == nil && claim.Annotations[volume.AnnSelectedNode] == s.node.Name:
			// The volume was provisioned, and its watch event can be later than that of the claim. If the
			// volume is gone, the claim will be Lost.
			p.late = append(p.late, claim)
		case volumes.IsBound(claim):
			err = s.checkBound(claim)
		case pv != nil && claimedBy(pv, claim):
			// The claim and the volume name each other, and the PersistentVolume controller completes that.
			p.static, err = append(p.static, match{claim: claim, volume: pv}), s.checkAffinity(pv)
		default:
			unbound, err = append(unbound, claim), s.checkDelayed(claim)
		}
		if err != nil {
			return plan{}, err
		}
	}
	slices.SortFunc(p.exclusive, func(a, b reservation) int { return cmp.Compare(a.claim.UID, b.claim.UID) })
	if p.wait != (framework.Wait{}) {
		return p, nil
	}
	err := s.match(unbound, &p)
	return p, err
}

// match finds a volume for each unbound claim, the smallest claim first, and adds the claims to the
// plan. Claims without a matching volume are provisioned.
func (s snapshot) match(unbound []*corev1.PersistentVolumeClaim, p *plan) error {
	var toMatch []*corev1.PersistentVolumeClaim
	for _, claim := range unbound {
		if begun(claim) {
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
			return err
		}
		if pv == nil {
			p.dynamic = append(p.dynamic, claim)
			continue
		}
		taken[pv.Name] = pv
		p.static = append(p.static, match{claim: claim, volume: pv})
	}
	for _, claim := range p.dynamic {
		err := s.checkProvision(claim)
		if err == nil {
			continue
		}
		if p.wait = s.pending(claim, taken); p.wait == (framework.Wait{}) {
			return err
		}
	}
	return nil
}

// begun returns whether a node was selected for the provisioning of the claim's volume.
func begun(claim *corev1.PersistentVolumeClaim) bool {
	return metav1.HasAnnotation(claim.ObjectMeta, volume.AnnSelectedNode)
}

// claimedBy returns whether the claimRef names exactly this claim.
func claimedBy(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID
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
	for _, pv := range s.reserved[claim.Name] {
		if pv.Status.Phase == corev1.VolumeBound && claimedBy(pv, claim) {
			// The PersistentVolume controller has decided. The cache does not hold the fields of a bound
			// volume that a match needs.
			return pv, s.checkAffinity(pv)
		}
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
