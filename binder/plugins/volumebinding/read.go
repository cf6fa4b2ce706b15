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
	// from is the cache, or the API server if live is set.
	from framework.Reader
	live bool
	// cached and free list the volumes and capacities that a claim can use, even if the reading
	// is live. A live reading reads the objects that the decision depends on again, and a survey
	// checks that none is missing.
	cached framework.Reader
	free   *FreeVolumes
}

// read reads the objects that the decision needs, from the API server if the context is live.
func (p *Plugin) read(ctx context.Context, from framework.Reader, bc *framework.BindContext) (snapshot, error) {
	r := reading{snapshot: newSnapshot(bc.Pod, bc.Node), from: from, live: bc.Live, cached: p.h.Cached, free: p.free}
	err := r.read(ctx)
	return r.snapshot, err
}

func (r *reading) read(ctx context.Context) error {
	var exclusive []*corev1.PersistentVolumeClaim
	for _, ref := range volumes.ClaimsOf(r.pod) {
		claim, err := framework.Get(ctx, r.from, &corev1.PersistentVolumeClaim{}, r.pod.Namespace, ref.Name)
		if err != nil {
			return err
		}
		if claim == nil {
			continue
		}
		r.claims[ref.Name] = claim
		if ref.IsExclusive(claim) {
			exclusive = append(exclusive, claim)
		}
		if err := r.readVolumes(ctx, claim); err != nil {
			return err
		}
	}
	if !r.live {
		// The cache holds neither CSINodes nor pods with a node.
		r.incomplete = r.incomplete || len(exclusive) > 0 || r.migratable()
		return nil
	}
	var err error
	if r.migratable() {
		if r.csiNode, err = framework.Get(ctx, r.from, &storagev1.CSINode{}, "", r.node.Name); err != nil {
			return err
		}
	}
	r.inUse, err = findUser(ctx, r.from, r.pod, exclusive)
	return err
}

// migratable returns whether the decision depends on the node's CSINode.
func (s snapshot) migratable() bool {
	for _, pv := range s.volumes {
		if volumes.IsMigratable(pv) {
			return true
		}
	}
	for _, some := range s.reserved {
		if slices.ContainsFunc(some, volumes.IsMigratable) {
			return true
		}
	}
	for _, some := range s.free {
		if slices.ContainsFunc(some, func(on shelf) bool { return on.migratable }) {
			return true
		}
	}
	return false
}

// readVolumes reads the volume that the claim names, or its class and the volumes that it
// could use.
func (r *reading) readVolumes(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if name := claim.Spec.VolumeName; name != "" {
		pv, err := framework.Get(ctx, r.from, &corev1.PersistentVolume{}, "", name)
		if pv != nil {
			r.volumes[name] = pv
		}
		return err
	}
	if err := r.readReserved(ctx, claim); err != nil {
		return err
	}
	name := volume.GetPersistentVolumeClaimClass(claim)
	if name == "" || r.classes[name] != nil {
		return nil
	}
	class, err := framework.Get(ctx, r.from, &storagev1.StorageClass{}, "", name)
	if class == nil {
		return err
	}
	r.classes[name] = class
	r.snapshot.free[name] = r.free.of(name, r.node.Labels[corev1.LabelHostname])
	return r.readCapacity(ctx, class)
}

// readReserved reads the volumes that name the claim, in the order of their names, so that
// two pods that use one claim choose the same volume for it.
func (r *reading) readReserved(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	var list corev1.PersistentVolumeList
	bucket := client.MatchingFields{claimRefIndex: claimBucket(claim.Namespace, claim.Name)}
	if err := r.cached.List(ctx, &list, bucket, client.UnsafeDisableDeepCopy); err != nil {
		return framework.FromAPI(framework.Object{Kind: "PersistentVolume"}, "listing volumes", err)
	}
	for i := range list.Items {
		pv := &list.Items[i]
		switch ref := pv.Spec.ClaimRef; {
		case ref == nil || ref.Namespace != claim.Namespace || ref.Name != claim.Name:
			continue
		case r.live:
			now, err := framework.Get(ctx, r.from, &corev1.PersistentVolume{}, "", pv.Name)
			if err != nil {
				return err
			}
			if now == nil || !volume.IsVolumeBoundToClaim(now, claim) {
				continue
			}
			pv = now
		case pv.Status.Phase == corev1.VolumeBound:
			// The claim will be bound soon, and the cache holds only the packed volume.
			r.incomplete = true
		}
		r.reserved[claim.Name] = append(r.reserved[claim.Name], pv)
	}
	slices.SortFunc(r.reserved[claim.Name], func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

// readCapacity reads the driver of the class and the capacity that it publishes for the
// class, if it publishes any.
func (r *reading) readCapacity(ctx context.Context, class *storagev1.StorageClass) error {
	driver, err := framework.Get(ctx, r.from, &storagev1.CSIDriver{}, "", class.Provisioner)
	if driver == nil {
		return err
	}
	r.drivers[driver.Name] = driver
	if !publishesCapacity(driver) {
		return nil
	}
	var list storagev1.CSIStorageCapacityList
	if err := r.cached.List(ctx, &list, client.MatchingFields{capacityIndex: class.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return framework.FromAPI(framework.Object{Kind: "CSIStorageCapacity"}, "listing capacities", err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		if !reachableFrom(c, r.node.Labels) {
			continue
		}
		if r.live {
			// The amount changes often.
			if c, err = framework.Get(ctx, r.from, &storagev1.CSIStorageCapacity{}, c.Namespace, c.Name); err != nil {
				return err
			}
			if c == nil {
				continue
			}
		}
		r.capacities[class.Name] = append(r.capacities[class.Name], c)
	}
	return nil
}
