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
	"github.com/prebind/prebind/binder/volumes"
)

// reading reads a snapshot.
type reading struct {
	snapshot
	p *Plugin
	// cache subscribes the bind to all that it reads. The plugin lists volumes and capacities through the
	// cache of its handle, which does not: the changes of all other volumes would wake the bind.
	cache framework.Reader
}

// read reads the objects that the decision needs.
func (p *Plugin) read(ctx context.Context, cache framework.Reader, bc *framework.BindContext) (snapshot, error) {
	r := reading{snapshot: newSnapshot(bc.Pod, bc.Node), p: p, cache: cache}
	for _, ref := range volumes.ClaimsOf(r.pod) {
		if err := r.readClaim(ctx, ref); err != nil {
			return r.snapshot, err
		}
	}
	var err error
	r.csiNode, err = framework.Get(ctx, cache, &storagev1.CSINode{}, "", r.node.Name)
	return r.snapshot, err
}

// readClaim reads the claim, its reservation, and the volume that the claim names, or its class and the
// volumes that it could use.
func (r *reading) readClaim(ctx context.Context, ref volumes.ClaimRef) error {
	claim, err := framework.Get(ctx, r.cache, &corev1.PersistentVolumeClaim{}, r.pod.Namespace, ref.Name)
	if claim == nil {
		return err
	}
	r.claims[ref.Name] = claim
	if ref.IsExclusive(claim) {
		if r.records[ref.Name], err = r.p.records.Get(ctx, r.cache, claim.UID); err != nil {
			return err
		}
	}
	if name := claim.Spec.VolumeName; name != "" {
		pv, err := framework.Get(ctx, r.cache, &corev1.PersistentVolume{}, "", name)
		if pv != nil {
			r.volumes[name] = pv
		}
		return err
	}
	return r.readChoices(ctx, claim)
}

// readChoices reads the class of an unbound claim, and the volumes that the claim could use. A claim
// with selected-node needs only the class.
func (r *reading) readChoices(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if !begun(claim) {
		if err := r.readReserved(ctx, claim); err != nil {
			return err
		}
	}
	name := volume.GetPersistentVolumeClaimClass(claim)
	if name == "" {
		return nil
	}
	class, err := framework.Get(ctx, r.cache, &storagev1.StorageClass{}, "", name)
	if class == nil {
		return err
	}
	r.classes[name] = class
	if _, done := r.free[name]; done || begun(claim) {
		return nil
	}
	r.free[name] = r.p.free.of(name, r.node.Labels[corev1.LabelHostname])
	return r.readCapacity(ctx, class)
}

// readReserved reads the volumes that name the claim, in the order of their names, so that
// two pods that use one claim choose the same volume for it.
func (r *reading) readReserved(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	var list corev1.PersistentVolumeList
	bucket := client.MatchingFields{claimRefIndex: claimBucket(claim.Namespace, claim.Name)}
	if err := r.p.h.Cached.List(ctx, &list, bucket, client.UnsafeDisableDeepCopy); err != nil {
		return framework.FromAPI(framework.Object{Kind: "PersistentVolume"}, "listing volumes", err)
	}
	for i := range list.Items {
		if pv := &list.Items[i]; volume.IsVolumeBoundToClaim(pv, claim) {
			r.reserved[claim.Name] = append(r.reserved[claim.Name], pv)
		}
	}
	slices.SortFunc(r.reserved[claim.Name], func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

// readCapacity reads the driver of the class and the capacity that it publishes for the
// class, if it publishes any.
func (r *reading) readCapacity(ctx context.Context, class *storagev1.StorageClass) error {
	driver, err := framework.Get(ctx, r.cache, &storagev1.CSIDriver{}, "", class.Provisioner)
	if driver == nil {
		return err
	}
	r.drivers[driver.Name] = driver
	if !publishesCapacity(driver) {
		return nil
	}
	var list storagev1.CSIStorageCapacityList
	if err := r.p.h.Cached.List(ctx, &list, client.MatchingFields{capacityIndex: class.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return framework.FromAPI(framework.Object{Kind: "CSIStorageCapacity"}, "listing capacities", err)
	}
	for i := range list.Items {
		r.capacities[class.Name] = append(r.capacities[class.Name], &list.Items[i])
	}
	return nil
}
