// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
)

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
//
// Every write of an allocation is on the condition of a version of the claim that
// has the attempt's mark. So an entry of a record is stale, and stays so, when the
// claim has neither the device nor the mark of the entry's attempt.
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
// of an owned class, and for whole devices.
func (a *OwnedClasses) Owns(_ context.Context, claim *resourcev1.ResourceClaim) error {
	check := func(request, class string, admin *bool, capacity *resourcev1.CapacityRequirements) error {
		switch {
		case !a.classes.Has(class):
			return fmt.Errorf("its request %q is of the DeviceClass %q, and Prebind allocates only %s", request, class, strings.Join(sets.List(a.classes), ", "))
		case ptr.Deref(admin, false):
			return fmt.Errorf("its request %q asks for admin access", request)
		case capacity != nil:
			return fmt.Errorf("its request %q asks for a part of a device's capacity", request)
		default:
			return nil
		}
	}
	if len(claim.Spec.Devices.Requests) == 0 {
		return errors.New("it requests nothing")
	}
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly != nil {
			if err := check(r.Name, r.Exactly.DeviceClassName, r.Exactly.AdminAccess, r.Exactly.Capacity); err != nil {
				return err
			}
		}
		for _, sub := range r.FirstAvailable {
			if err := check(r.Name+"/"+sub.Name, sub.DeviceClassName, nil, sub.Capacity); err != nil {
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
	for {
		records, err := a.pools.list(ctx)
		if err != nil {
			return nil, err
		}
		result, err := a.choose(ctx, bc, claim, records)
		if err != nil {
			return nil, err
		}
		other := heldByOther(records, claim.UID, bc.Attempt)
		if result == nil || other {
			// Whoever is in the records may be gone. It is looked at until nothing changes:
			// another replica may be at it as well, and what this one dropped be there still.
			if pruned, err := a.prune(ctx, records); err != nil {
				return nil, err
			} else if pruned {
				continue
			}
		}
		if other {
			return a.byOther(ctx, claim)
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

// byOther returns the claim as another attempt has allocated it, or says that it is
// at it.
func (a *OwnedClasses) byOther(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	about := claimObject(claim.Namespace, claim.Name)
	fresh := &resourcev1.ResourceClaim{}
	if err := a.o.Live.Get(ctx, client.ObjectKeyFromObject(claim), fresh); err != nil {
		return nil, api.FromAPI(about, "reading it", err)
	}
	if fresh.UID == claim.UID && fresh.Status.Allocation != nil {
		return fresh, nil
	}
	return nil, api.Wait(about, "another bind is allocating it").Advise("repeat the Binding")
}

// write gives the claim what was chosen, and reserves it for the pod: the finalizer
// first, as upstream does. When somebody else allocates the claim meanwhile, that
// stands, and what was taken for it is given back.
func (a *OwnedClasses) write(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, result *resourcev1.AllocationResult) (*resourcev1.ResourceClaim, error) {
	result.AllocationTimestamp = new(metav1.NewTime(a.o.Clock.Now()))
	key := client.ObjectKeyFromObject(claim)
	about := claimObject(key.Namespace, key.Name)
	for {
		allocated, err := a.tryWrite(ctx, bc, claim, result)
		if err == nil {
			return allocated, nil
		}
		fresh := &resourcev1.ResourceClaim{}
		if apierrors.IsConflict(err) {
			err = a.o.Live.Get(ctx, key, fresh)
		}
		switch {
		case apierrors.IsNotFound(err), err == nil && fresh.UID != claim.UID:
			return nil, api.Refuse(about, "the claim is gone").Because(err).Advise("create it, or correct the pod")
		case err != nil:
			return nil, api.FromAPI(about, "allocating it", err)
		case fresh.Status.Allocation != nil:
			return fresh, a.pools.giveBack(ctx, claim.UID, bc.Attempt, devicesOf(fresh.Status.Allocation))
		case fresh.DeletionTimestamp != nil:
			return nil, api.Refuse(about, "the claim is being deleted").Advise("make it anew, or correct the pod")
		case !markedBy(fresh, bc.Attempt):
			return nil, api.Wait(about, "this bind was rolled back by another replica").Advise("repeat the Binding")
		}
		claim = fresh
	}
}

// tryWrite returns the claim as the API server has answered.
func (a *OwnedClasses) tryWrite(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim, result *resourcev1.AllocationResult) (*resourcev1.ResourceClaim, error) {
	claim = claim.DeepCopy()
	if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
		before := claim.DeepCopy()
		claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
		if err := a.o.Writer.Patch(ctx, claim, whileAsIn(before), fieldOwner); err != nil {
			return nil, err
		}
	}
	before := claim.DeepCopy()
	claim.Status.Allocation = result
	if !reservedFor(claim, bc.Pod.UID) {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: bc.Pod.Name, UID: bc.Pod.UID,
		})
	}
	return claim, a.o.Status.Status().Patch(ctx, claim, whileAsIn(before), fieldOwner)
}

// whileAsIn makes a patch that fails when the claim is not as it was before.
func whileAsIn(before *resourcev1.ResourceClaim) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// Undo implements Allocator. The allocation goes only when this attempt made it and
// no other pod has reserved the claim.
func (a *OwnedClasses) Undo(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim) (bool, error) {
	if claim.Status.Allocation == nil {
		// Whatever is in the records for it is stale once the mark is off.
		return false, nil
	}
	for _, r := range claim.Status.ReservedFor {
		if r.UID != bc.Pod.UID {
			return false, nil
		}
	}
	records, err := a.pools.list(ctx)
	if records == nil && err != nil {
		return false, err
	}
	if !recorded(records, claim, bc.Attempt) {
		return false, nil
	}
	if err := a.deallocate(ctx, claim); err != nil {
		return false, err
	}
	return true, a.pools.giveBack(ctx, claim.UID, bc.Attempt, nil)
}

// deallocate takes the devices from a claim that is as it was read.
func (a *OwnedClasses) deallocate(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	empty := claim.DeepCopy()
	empty.Status = resourcev1.ResourceClaimStatus{}
	return a.o.Status.Status().Patch(ctx, empty, whileAsIn(claim), fieldOwner)
}

// Tidy implements Allocator. It gives up entries of the records that are stale, and
// allocations of Prebind's that were left behind: nobody has reserved the claim, and
// no attempt has marked it.
func (a *OwnedClasses) Tidy(ctx context.Context) error {
	records, broken := a.pools.list(ctx)
	_, err := a.prune(ctx, records)
	return errors.Join(broken, err)
}

// prune does what Tidy does, with records that were just read: it looks at their
// claims. It says whether it gave anything up.
func (a *OwnedClasses) prune(ctx context.Context, records []*poolRecord) (bool, error) {
	pruned := false
	claims := map[types.UID]*resourcev1.ResourceClaim{}
	for _, r := range records {
		var stale []string
		for device, e := range r.entries {
			if _, looked := claims[e.UID]; !looked {
				claim, err := a.holder(ctx, records, e)
				if err != nil {
					return pruned, err
				}
				claims[e.UID] = claim
			}
			if !holds(claims[e.UID], r.id(device), e.Attempt) {
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

// holder is the claim that the entry names, as the API server has it, or nil when it
// is gone. One that was left behind is deallocated first.
func (a *OwnedClasses) holder(ctx context.Context, records []*poolRecord, e entry) (*resourcev1.ResourceClaim, error) {
	claim := &resourcev1.ResourceClaim{}
	err := a.o.Live.Get(ctx, types.NamespacedName(e.Claim), claim)
	switch {
	case apierrors.IsNotFound(err), err == nil && claim.UID != e.UID:
		return nil, nil
	case err != nil:
		return nil, api.FromAPI(claimObject(e.Claim.Namespace, e.Claim.Name), "looking whether it still holds its devices", err)
	case claim.Status.Allocation == nil, len(claim.Status.ReservedFor) > 0, markedBy(claim, ""), !recorded(records, claim, ""):
		return claim, nil
	}
	err = a.deallocate(ctx, claim)
	switch {
	case err == nil, apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsConflict(err):
		return claim, nil // Somebody uses it after all.
	default:
		return nil, api.FromAPI(claimObject(e.Claim.Namespace, e.Claim.Name), "taking back its devices, which nobody uses", err)
	}
}

// holds says whether the claim has the device, or the attempt may be about to give
// it: then that attempt's mark is on the claim.
func holds(claim *resourcev1.ResourceClaim, device deviceID, attempt string) bool {
	switch {
	case claim == nil:
		return false
	case claim.Status.Allocation != nil:
		return devicesOf(claim.Status.Allocation).Has(device)
	default:
		return markedBy(claim, attempt)
	}
}

// markedBy says whether the claim has a mark of the attempt, for whichever pod; for
// "", of any attempt.
func markedBy(claim *resourcev1.ResourceClaim, attempt string) bool {
	for key := range claim.Annotations {
		if strings.HasPrefix(key, Name+".") && (attempt == "" || strings.HasSuffix(key, "."+attempt)) {
			return true
		}
	}
	return false
}

func name(claim *resourcev1.ResourceClaim) claimName {
	return claimName{Namespace: claim.Namespace, Name: claim.Name}
}
