// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
)

// features are what the allocator may use: those that are on by default in
// Kubernetes 1.36, but for admin access, which is no allocation.
var features = structured.Features{
	PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
}

// celExpressions is how many compiled expressions of classes and claims are kept.
const celExpressions = 100

// OwnedOptions are those of an OwnedClasses. All fields are required.
type OwnedOptions struct {
	// Classes are the DeviceClasses that Prebind alone allocates.
	Classes []string
	// Cached holds what OwnedWatches lists.
	Cached client.Reader
	Live   client.Reader
	Writer client.Writer
	Status client.StatusClient
	Clock  clock.PassiveClock
	// Namespace of the records.
	Namespace string
}

// OwnedClasses allocates claims of DeviceClasses that no scheduler allocates. What
// it gives stands first in one record for each pool, and then in the claim: two
// replicas never give a device twice. It is safe for concurrent use.
type OwnedClasses struct {
	o       OwnedOptions
	classes sets.Set[string]
	pools   *pools
	// turn lets one allocation run at a time, for they all choose from the same
	// devices.
	turn chan struct{}
	cel  *cel.Cache
}

var _ Allocator = (*OwnedClasses)(nil)

// OwnedWatches are the kinds that OwnedOptions.Cached has to hold.
func OwnedWatches() map[string]client.Object {
	return map[string]client.Object{
		"ResourceClaim": &resourcev1.ResourceClaim{},
		"ResourceSlice": &resourcev1.ResourceSlice{},
		"DeviceClass":   &resourcev1.DeviceClass{},
	}
}

// NewOwnedClasses checks the options and returns the allocator.
func NewOwnedClasses(o OwnedOptions) (*OwnedClasses, error) {
	if len(o.Classes) == 0 || o.Cached == nil || o.Live == nil || o.Writer == nil || o.Status == nil || o.Clock == nil || o.Namespace == "" {
		return nil, errors.New(Name + ": Classes, Cached, Live, Writer, Status, Clock and Namespace are required")
	}
	return &OwnedClasses{
		o: o, classes: sets.New(o.Classes...), turn: make(chan struct{}, 1), cel: cel.NewCache(celExpressions, cel.Features{}),
		pools: &pools{live: o.Live, writer: o.Writer, namespace: o.Namespace},
	}, nil
}

// Owns says why a claim is not Prebind's to allocate: each of its requests has to be
// of an owned class.
func (a *OwnedClasses) Owns(_ context.Context, claim *resourcev1.ResourceClaim) error {
	check := func(request, class string, admin *bool) error {
		switch {
		case !a.classes.Has(class):
			return fmt.Errorf("its request %q is of the DeviceClass %q, and Prebind allocates only %s", request, class, strings.Join(sets.List(a.classes), ", "))
		case ptr.Deref(admin, false):
			return fmt.Errorf("its request %q asks for admin access", request)
		default:
			return nil
		}
	}
	if len(claim.Spec.Devices.Requests) == 0 {
		return errors.New("it requests nothing")
	}
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly != nil {
			if err := check(r.Name, r.Exactly.DeviceClassName, r.Exactly.AdminAccess); err != nil {
				return err
			}
		}
		for _, sub := range r.FirstAvailable {
			if err := check(r.Name+"/"+sub.Name, sub.DeviceClassName, nil); err != nil {
				return err
			}
		}
		if r.Exactly == nil && len(r.FirstAvailable) == 0 {
			return fmt.Errorf("its request %q is of a kind that Prebind does not know", r.Name)
		}
	}
	return nil
}

// Allocate implements Allocator.
func (a *OwnedClasses) Allocate(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	pruned := false
	for {
		records, err := a.pools.list(ctx)
		if err != nil {
			return nil, err
		}
		result, err := a.choose(ctx, bc.Node, claim, records, bc.Attempt)
		if err != nil {
			return nil, err
		}
		other := heldByOther(records, claim.UID, bc.Attempt)
		if (result == nil || other) && !pruned {
			// Whoever is in the records may be gone.
			if pruned, err = a.prune(ctx, records); err != nil {
				return nil, err
			}
			if pruned {
				continue
			}
		}
		if other {
			return nil, api.Wait(claimObject(claim.Namespace, claim.Name), "the bind of another pod is allocating it").Advise("repeat the Binding")
		}
		if result == nil {
			return nil, api.Refuse(claimObject(claim.Namespace, claim.Name), "nothing that is free on the node %s fits its requests", bc.Node.Name).
				Advise("choose another node, or wait until devices are given back")
		}
		err = a.pools.take(ctx, records, entry{Claim: name(claim), UID: claim.UID, Attempt: bc.Attempt}, devicesOf(result))
		if errors.Is(err, errOthersWrote) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return a.write(ctx, bc, claim, result)
	}
}

// choose runs the public allocator. It returns nil when nothing fits.
func (a *OwnedClasses) choose(ctx context.Context, node *corev1.Node, claim *resourcev1.ResourceClaim, records []*poolRecord, attempt string) (*resourcev1.AllocationResult, error) {
	about := claimObject(claim.Namespace, claim.Name)
	var slicesList resourcev1.ResourceSliceList
	var claims resourcev1.ResourceClaimList
	for _, list := range []client.ObjectList{&slicesList, &claims} {
		if err := a.o.Cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, api.Internal(about, err)
		}
	}
	state := structured.AllocatedState{
		AllocatedDevices: taken(claim.UID, attempt, claims.Items, records), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	published := make([]*resourcev1.ResourceSlice, 0, len(slicesList.Items))
	for i := range slicesList.Items {
		published = append(published, &slicesList.Items[i])
	}
	allocator, err := structured.NewAllocator(ctx, features, state, classLister{ctx: ctx, cached: a.o.Cached}, published, a.cel)
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

// taken are the devices that are not free for the claim: by what the claims of the
// cache say, and by the records, which are never behind.
func taken(claim types.UID, attempt string, claims []resourcev1.ResourceClaim, records []*poolRecord) sets.Set[structured.DeviceID] {
	all := sets.New[structured.DeviceID]()
	for i := range claims {
		if allocation := claims[i].Status.Allocation; allocation != nil && claims[i].UID != claim {
			all = all.Union(devicesOf(allocation))
		}
	}
	for _, r := range records {
		for device, e := range r.entries {
			if e.UID != claim || e.Attempt != attempt {
				all.Insert(structured.MakeDeviceID(r.driver, r.pool, device))
			}
		}
	}
	return all
}

func devicesOf(allocation *resourcev1.AllocationResult) sets.Set[structured.DeviceID] {
	all := sets.New[structured.DeviceID]()
	for _, r := range allocation.Devices.Results {
		if !ptr.Deref(r.AdminAccess, false) {
			all.Insert(structured.MakeDeviceID(r.Driver, r.Pool, r.Device))
		}
	}
	return all
}

// write gives the claim what was chosen, and reserves it for the pod: the finalizer
// first, as upstream does. When somebody else allocates the claim meanwhile, that
// stands, and what was taken for it is given back.
func (a *OwnedClasses) write(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, result *resourcev1.AllocationResult) (*resourcev1.ResourceClaim, error) {
	result.AllocationTimestamp = ptr.To(metav1.NewTime(a.o.Clock.Now()))
	key := client.ObjectKeyFromObject(claim)
	for {
		err := a.tryWrite(ctx, bc, claim, result)
		if err == nil {
			return claim, nil
		}
		fresh := &resourcev1.ResourceClaim{}
		if apierrors.IsConflict(err) {
			err = a.o.Live.Get(ctx, key, fresh)
		}
		switch {
		case err == nil && fresh.UID == claim.UID && fresh.Status.Allocation == nil:
			claim = fresh
			continue
		case err == nil:
			_, err = a.pools.giveBack(ctx, claim.UID, bc.Attempt)
			return fresh, err
		case apierrors.IsNotFound(err):
			return nil, api.Refuse(claimObject(key.Namespace, key.Name), "the claim is gone").Because(err).Advise("create it, or correct the pod")
		default:
			return nil, api.FromAPI(claimObject(key.Namespace, key.Name), "allocating it", err)
		}
	}
}

// tryWrite leaves the claim as the API server has answered.
func (a *OwnedClasses) tryWrite(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, result *resourcev1.AllocationResult) error {
	if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
		before := claim.DeepCopy()
		claim.Finalizers = append(slices.Clone(claim.Finalizers), resourcev1.Finalizer)
		if err := a.o.Writer.Patch(ctx, claim, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return err
		}
	}
	before := claim.DeepCopy()
	claim.Status.Allocation = result
	if !reservedFor(claim, bc.Pod.UID) {
		claim.Status.ReservedFor = append(slices.Clone(claim.Status.ReservedFor), resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: bc.Pod.Name, UID: bc.Pod.UID,
		})
	}
	return a.o.Status.Status().Patch(ctx, claim, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// Undo implements Allocator. The allocation goes only when this attempt made it and
// no other pod has reserved the claim.
func (a *OwnedClasses) Undo(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim) (bool, error) {
	records, err := a.pools.list(ctx)
	if err != nil {
		return false, err
	}
	mine := ownedBy(records, claim.UID, bc.Attempt)
	if len(mine) == 0 {
		return false, nil
	}
	undone := false
	if claim.Status.Allocation != nil {
		if others := len(claim.Status.ReservedFor); others > 1 || others == 1 && !reservedFor(claim, bc.Pod.UID) {
			// It is in use, and stays. The records keep it until it is given up.
			return false, nil
		}
		before := claim.DeepCopy()
		deallocated := claim.DeepCopy()
		deallocated.Status = resourcev1.ResourceClaimStatus{}
		if err := a.o.Status.Status().Patch(ctx, deallocated, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return false, err
		}
		undone = true
	}
	_, err = a.pools.giveBack(ctx, claim.UID, bc.Attempt)
	return undone, err
}

// Tidy gives up what claims in the records do not hold any more.
func (a *OwnedClasses) Tidy(ctx context.Context) error {
	records, err := a.pools.list(ctx)
	if err != nil {
		return err
	}
	_, err = a.prune(ctx, records)
	return err
}

// prune drops, from the records, what their claims do not hold: it looks. It says
// whether it dropped anything.
func (a *OwnedClasses) prune(ctx context.Context, records []*poolRecord) (bool, error) {
	pruned := false
	claims := map[types.UID]*resourcev1.ResourceClaim{}
	for _, r := range records {
		var stale []string
		for device, e := range r.entries {
			if _, looked := claims[e.UID]; !looked {
				claim := &resourcev1.ResourceClaim{}
				err := a.o.Live.Get(ctx, types.NamespacedName(e.Claim), claim)
				if client.IgnoreNotFound(err) != nil {
					return pruned, api.FromAPI(claimObject(e.Claim.Namespace, e.Claim.Name), "looking whether it still holds its devices", err)
				}
				if err != nil || claim.UID != e.UID {
					claim = nil
				}
				claims[e.UID] = claim
			}
			if !holds(claims[e.UID], structured.MakeDeviceID(r.driver, r.pool, device), e.Attempt) {
				stale = append(stale, device)
			}
		}
		if len(stale) == 0 && len(r.entries) > 0 {
			continue
		}
		dropped, err := a.pools.drop(ctx, r, stale)
		if err != nil {
			return pruned, err
		}
		pruned = pruned || dropped
	}
	return pruned, nil
}

// holds says whether the claim has the device, or an attempt may be about to give
// it: then that attempt's mark is on the claim.
func holds(claim *resourcev1.ResourceClaim, device structured.DeviceID, attempt string) bool {
	switch {
	case claim == nil:
		return false
	case claim.Status.Allocation != nil:
		return devicesOf(claim.Status.Allocation).Has(device)
	default:
		for key := range claim.Annotations {
			if strings.HasPrefix(key, Name+".") && strings.HasSuffix(key, "."+attempt) {
				return true
			}
		}
		return false
	}
}

// classLister reads DeviceClasses from the cache.
type classLister struct {
	ctx    context.Context //nolint:containedctx // It lives as long as one allocation, whose interface takes none.
	cached client.Reader
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
	return found, l.cached.Get(l.ctx, client.ObjectKey{Name: class}, found)
}

func name(claim *resourcev1.ResourceClaim) claimName {
	return claimName{Namespace: claim.Namespace, Name: claim.Name}
}
