// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/volumes"
)

// read reads the objects that the decision needs. cache subscribes the bind to all that it reads. The plugin lists
// volumes and capacities through the cache of its handle, which does not: the changes of all other volumes would wake
// the bind.
func (p *Plugin) read(ctx context.Context, cache framework.Reader, bc *framework.BindContext, refs []volumes.ClaimRef) (snapshot, error) {
	s := snapshot{pod: bc.Pod, node: bc.Node}
	for _, ref := range refs {
		u, err := p.readUse(ctx, cache, bc, ref)
		if err != nil {
			return s, err
		}
		s.uses = append(s.uses, u)
	}
	var err error
	s.csiNode, err = framework.Get(ctx, cache, &storagev1.CSINode{}, "", s.node.Name, volumes.CSINodes)
	return s, err
}

// readUse reads the claim, its reservation, and the volume that the claim names, or its class and the
// volumes that it could use.
func (p *Plugin) readUse(ctx context.Context, cache framework.Reader, bc *framework.BindContext, ref volumes.ClaimRef) (u use, err error) {
	u.ClaimRef = ref
	u.claim, err = framework.Get(ctx, cache, &corev1.PersistentVolumeClaim{}, bc.Pod.Namespace, ref.Name, volumes.Claims)
	if u.claim == nil {
		return u, err
	}
	if volumes.IsExclusive(u.claim) {
		if u.record, err = p.records.Get(ctx, cache, u.claim.UID); err != nil {
			return u, err
		}
	}
	if name := u.claim.Spec.VolumeName; name != "" {
		u.volume, err = framework.Get(ctx, cache, &corev1.PersistentVolume{}, "", name, volumes.Volumes)
		return u, err
	}
	if u.reserved, err = p.readReserved(ctx, u.claim); err != nil {
		return u, err
	}
	class := volume.GetPersistentVolumeClaimClass(u.claim)
	u.class, err = framework.Get(ctx, cache, &storagev1.StorageClass{}, "", class)
	if u.class == nil {
		return u, err
	}
	u.free = p.free.of(class, bc.Node.Labels[corev1.LabelHostname])
	u.driver, err = framework.Get(ctx, cache, &storagev1.CSIDriver{}, "", u.class.Provisioner)
	if !publishesCapacity(u.driver) {
		return u, err
	}
	var list storagev1.CSIStorageCapacityList
	if err := p.h.Cached.List(ctx, &list, capacities.Where(class), client.UnsafeDisableDeepCopy); err != nil {
		return u, framework.FromAPI(framework.Object{Kind: "CSIStorageCapacity"}, "listing capacities", err)
	}
	u.capacities = list.Items
	return u, nil
}

// readReserved returns the volumes that name the claim, in the order of their names, so that
// two pods that use one claim choose the same volume for it.
func (p *Plugin) readReserved(ctx context.Context, claim *corev1.PersistentVolumeClaim) ([]*corev1.PersistentVolume, error) {
	var list corev1.PersistentVolumeList
	named := volumes.Volumes.Where(volumes.ClaimKey(claim.Namespace, claim.Name))
	if err := p.h.Cached.List(ctx, &list, named, client.UnsafeDisableDeepCopy); err != nil {
		return nil, framework.FromAPI(framework.Object{Kind: "PersistentVolume"}, "listing volumes", err)
	}
	var reserved []*corev1.PersistentVolume
	for i := range list.Items {
		if pv := &list.Items[i]; volume.IsVolumeBoundToClaim(pv, claim) {
			reserved = append(reserved, pv)
		}
	}
	slices.SortFunc(reserved, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return reserved, nil
}
