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
	s := snapshot{pod: bc.Pod, node: bc.Node, capacities: map[string][]*storagev1.CSIStorageCapacity{}}
	for _, ref := range refs {
		u, err := p.readUse(ctx, cache, bc, ref)
		if err != nil {
			return s, err
		}
		s.uses = append(s.uses, u)
		// A class can have a capacity for each node, and a pod thousands of claims of it.
		if !publishesCapacity(u.driver) || s.capacities[u.class.Name] != nil {
			continue
		}
		if s.capacities[u.class.Name], err = p.readCapacities(ctx, u.class.Name, bc.Node); err != nil {
			return s, err
		}
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
	if u.class == nil || begun(u.claim) {
		return u, err
	}
	u.free = p.free.of(class, bc.Node.Labels[corev1.LabelHostname])
	u.driver, err = framework.Get(ctx, cache, &storagev1.CSIDriver{}, "", u.class.Provisioner)
	return u, err
}

// readCapacities returns the capacities of the class that the node can use, and never nil without an error.
func (p *Plugin) readCapacities(ctx context.Context, class string, node *corev1.Node) ([]*storagev1.CSIStorageCapacity, error) {
	var list storagev1.CSIStorageCapacityList
	if err := p.h.Cached.List(ctx, &list, capacities.Where(class), client.UnsafeDisableDeepCopy); err != nil {
		return nil, framework.FromAPI(framework.Object{Kind: "CSIStorageCapacity"}, "listing capacities", err)
	}
	reachable := []*storagev1.CSIStorageCapacity{}
	for i := range list.Items {
		if c := &list.Items[i]; reachableFrom(c, node.Labels) {
			reachable = append(reachable, c)
		}
	}
	return reachable, nil
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
