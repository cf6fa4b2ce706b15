// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// features are the features that are on by default in Kubernetes 1.36, except for admin
// access, which allocates nothing, and shared capacity. A device with shared capacity is
// allocated to one claim.
var features = structured.Features{
	PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
}

type deviceID = structured.DeviceID

// fit runs the allocator of kube-scheduler. It returns nil if no free devices match.
func (a *allocator) fit(ctx context.Context, node *corev1.Node, claim *resourcev1.ResourceClaim, published []*resourcev1.ResourceSlice, taken sets.Set[deviceID]) (*resourcev1.AllocationResult, error) {
	about := claimObject(claim.Namespace, claim.Name)
	state := structured.AllocatedState{
		AllocatedDevices: taken, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	allocator, err := structured.NewAllocator(ctx, features, state, classLister{ctx: ctx, cached: a.h.Cached, live: a.h.Live}, published, a.cel)
	if err != nil {
		return nil, framework.Internal(about, err)
	}
	results, err := allocator.Allocate(ctx, node, []*resourcev1.ResourceClaim{claim})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, framework.Refuse(about, "the allocation failed: %v", err).Because(err).Advise("fix the claim, its DeviceClass, or the ResourceSlices")
	case len(results) != 1:
		return nil, nil
	}
	return &results[0], nil
}

// devicesOf returns the devices of an allocation, which may be nil.
func devicesOf(allocation *resourcev1.AllocationResult) sets.Set[deviceID] {
	all := sets.New[deviceID]()
	if allocation == nil {
		return all
	}
	for _, r := range allocation.Devices.Results {
		if !ptr.Deref(r.AdminAccess, false) {
			all.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
		}
	}
	return all
}

// classLister reads DeviceClasses from the cache. It reads a class that the cache does not
// contain from the API server.
type classLister struct {
	ctx          context.Context //nolint:containedctx // The lister serves one allocation, and its interface has no context.
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
