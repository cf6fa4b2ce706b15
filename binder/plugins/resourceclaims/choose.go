// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
)

// features are what the allocator may use: those that are on by default in
// Kubernetes 1.36, but for admin access, which is no allocation, and parts of a
// device's capacity. Without the latter a device that could be shared goes to one
// claim.
var features = structured.Features{
	PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
}

type deviceID = structured.DeviceID

// choose runs the public allocator. It returns nil when nothing fits, also by the
// claims as the API server has them.
func (a *OwnedClasses) choose(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, records []*poolRecord) (*resourcev1.AllocationResult, error) {
	var published resourcev1.ResourceSliceList
	var claims resourcev1.ResourceClaimList
	for _, list := range []client.ObjectList{&published, &claims} {
		if err := a.o.Cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, api.Internal(claimObject(claim.Namespace, claim.Name), err)
		}
	}
	held := heldDevices(claim.UID, bc.Attempt, records)
	result, err := a.fit(ctx, bc.Node, claim, published.Items, held.Union(allocatedTo(claims.Items, claim.UID)))
	if result != nil || err != nil {
		return result, err
	}
	current, err := a.asTheyAre(ctx, claims.Items, held)
	if err != nil || current == nil {
		return nil, err
	}
	return a.fit(ctx, bc.Node, claim, published.Items, held.Union(allocatedTo(current, claim.UID)))
}

// fit is one run of the allocator.
func (a *OwnedClasses) fit(ctx context.Context, node *corev1.Node, claim *resourcev1.ResourceClaim, published []resourcev1.ResourceSlice, taken sets.Set[deviceID]) (*resourcev1.AllocationResult, error) {
	about := claimObject(claim.Namespace, claim.Name)
	state := structured.AllocatedState{
		AllocatedDevices: taken, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	pointers := make([]*resourcev1.ResourceSlice, 0, len(published))
	for i := range published {
		pointers = append(pointers, &published[i])
	}
	allocator, err := structured.NewAllocator(ctx, features, state, classLister{ctx: ctx, cached: a.o.Cached, live: a.o.Live}, pointers, a.cel)
	if err != nil {
		return nil, api.Internal(about, err)
	}
	results, err := allocator.Allocate(ctx, node, []*resourcev1.ResourceClaim{claim})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, api.Refuse(about, "its devices could not be allocated: %v", err).Because(err).Advise("correct the claim, its DeviceClass, or the ResourceSlices")
	case len(results) != 1:
		return nil, nil
	}
	return &results[0], nil
}

// asTheyAre returns the claims with those of owned classes as the API server has
// them that hold devices by the cache alone, and not by the records. It returns nil
// when that changes nothing.
func (a *OwnedClasses) asTheyAre(ctx context.Context, claims []resourcev1.ResourceClaim, held sets.Set[deviceID]) ([]resourcev1.ResourceClaim, error) {
	current := make([]resourcev1.ResourceClaim, 0, len(claims))
	changed := false
	for i := range claims {
		claim := &claims[i]
		if claim.Status.Allocation == nil || a.Owns(ctx, claim) != nil || held.IsSuperset(devicesOf(claim.Status.Allocation)) {
			current = append(current, *claim)
			continue
		}
		fresh := &resourcev1.ResourceClaim{}
		err := a.o.Live.Get(ctx, client.ObjectKeyFromObject(claim), fresh)
		if client.IgnoreNotFound(err) != nil {
			return nil, api.FromAPI(claimObject(claim.Namespace, claim.Name), "looking whether it still holds its devices", err)
		}
		changed = changed || err != nil || fresh.ResourceVersion != claim.ResourceVersion
		if err == nil {
			current = append(current, *fresh)
		}
	}
	if !changed {
		return nil, nil
	}
	return current, nil
}

// heldDevices are those that the records say are somebody else's than the
// attempt's at the claim. The records are never behind.
func heldDevices(claim types.UID, attempt string, records []*poolRecord) sets.Set[deviceID] {
	held := sets.New[deviceID]()
	for _, r := range records {
		for device, e := range r.entries {
			if e.UID != claim || e.Attempt != attempt {
				held.Insert(r.id(device))
			}
		}
	}
	return held
}

// allocatedTo are the devices of all claims but one.
func allocatedTo(claims []resourcev1.ResourceClaim, but types.UID) sets.Set[deviceID] {
	all := sets.New[deviceID]()
	for i := range claims {
		if allocation := claims[i].Status.Allocation; allocation != nil && claims[i].UID != but {
			all = all.Union(devicesOf(allocation))
		}
	}
	return all
}

func devicesOf(allocation *resourcev1.AllocationResult) sets.Set[deviceID] {
	all := sets.New[deviceID]()
	for _, r := range allocation.Devices.Results {
		if !ptr.Deref(r.AdminAccess, false) {
			all.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
		}
	}
	return all
}

// classLister reads DeviceClasses from the cache, and one that is not there from
// the API server.
type classLister struct {
	ctx          context.Context //nolint:containedctx // It lives as long as one allocation, whose interface takes none.
	cached, live client.Reader
}

// List implements structured.DeviceClassLister.
func (l classLister) List() ([]*resourcev1.DeviceClass, error) {
	var list resourcev1.DeviceClassList
	if err := l.cached.List(l.ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	classes := make([]*resourcev1.DeviceClass, 0, len(list.Items))
	for i := range list.Items {
		classes = append(classes, &list.Items[i])
	}
	return classes, nil
}

// Get implements structured.DeviceClassLister.
func (l classLister) Get(class string) (*resourcev1.DeviceClass, error) {
	found := &resourcev1.DeviceClass{}
	err := l.cached.Get(l.ctx, client.ObjectKey{Name: class}, found)
	if apierrors.IsNotFound(err) {
		err = l.live.Get(l.ctx, client.ObjectKey{Name: class}, found)
	}
	return found, err
}
