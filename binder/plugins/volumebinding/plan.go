// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/volumes"
)

// snapshot is the input of a decision. Objects that do not exist are nil.
type snapshot struct {
	pod  *corev1.Pod
	node *corev1.Node
	// csiNode lists the in-tree plugins that the node has migrated to CSI drivers.
	csiNode *storagev1.CSINode
	// uses contains the claims of the pod in its order.
	uses []use
	// capacities contains the published capacities that the node can use, by class.
	capacities map[string][]*storagev1.CSIStorageCapacity
}

// use is a claim of the pod and the objects that its binding depends on.
type use struct {
	volumes.ClaimRef
	claim *corev1.PersistentVolumeClaim
	// record is the reservation of a ReadWriteOncePod claim.
	record *recordVersion
	// volume is the volume that the claim names. The other objects are those of a claim that names none.
	volume *corev1.PersistentVolume
	class  *storagev1.StorageClass
	// reserved contains the volumes that name the claim.
	reserved []*corev1.PersistentVolume
	// free contains the free volumes of the class. It omits volumes that only other nodes can use.
	free []shelf
	// driver is the provisioner of the class.
	driver *storagev1.CSIDriver
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
func findPodVolumes(ctx context.Context, s snapshot) (plan, error) {
	var p plan
	var unbound []use
	for _, u := range s.uses {
		claim := u.claim
		if claim == nil && u.Ephemeral != nil {
			p.wait = framework.Wait{
				Object: s.claimObject(u),
				For:    fmt.Sprintf("the ephemeral volume controller to create the claim of volume %q", u.Ephemeral.Name),
			}
			continue
		}
		if err := s.usable(u); err != nil {
			return plan{}, err
		}
		if volumes.IsExclusive(claim) {
			p.exclusive = append(p.exclusive, reservation{claim: claim, record: u.record})
		}
		var err error
		switch {
		case volumes.IsBound(claim) && u.volume == nil && claim.Annotations[volume.AnnSelectedNode] == s.node.Name:
			// The volume was provisioned, and its watch event can be later than that of the claim. If the
			// volume is gone, the claim will be Lost.
			p.late = append(p.late, claim)
		case volumes.IsBound(claim):
			err = s.checkBound(u)
		case u.volume != nil && claimedBy(u.volume, claim):
			// The claim and the volume name each other, and the PersistentVolume controller completes that.
			p.static, err = append(p.static, match{claim: claim, volume: u.volume}), s.checkAffinity(u.volume)
		default:
			unbound, err = append(unbound, u), s.checkDelayed(u)
		}
		if err != nil {
			return plan{}, err
		}
	}
	if n := len(p.exclusive); n > maxExclusive {
		return plan{}, framework.Refuse(framework.ObjectOf(s.pod), "the pod has %d ReadWriteOncePod claims, and the maximum is %d", n, maxExclusive)
	}
	slices.SortFunc(p.exclusive, func(a, b reservation) int { return cmp.Compare(a.claim.UID, b.claim.UID) })
	if p.wait != (framework.Wait{}) {
		return p, nil
	}
	err := s.match(ctx, unbound, &p)
	return p, err
}
