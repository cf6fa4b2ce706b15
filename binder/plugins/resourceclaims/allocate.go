// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"errors"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/ledger"
)

// celExpressions is the size of the cache of compiled CEL expressions.
const celExpressions = 100

// allocator allocates claims of DeviceClasses that no scheduler allocates. It writes
// each device first into one record for each pool, and then into the claim, so that two
// replicas never allocate a device twice. It is safe for concurrent use.
//
// Every write of an allocation requires a version of the claim, which the entry of the
// record names. So an entry is stale, and stays stale, when the claim has a later version
// and not the device.
type allocator struct {
	h framework.Handle
	// classes are the DeviceClasses that Prebind alone allocates.
	classes sets.Set[string]
	pools   pools
	// turn lets one allocation run at a time: all of them choose from the same devices.
	turn chan struct{}
	cel  *cel.Cache
}

func newAllocator(h framework.Handle, classes []string) *allocator {
	return &allocator{
		h: h, classes: sets.New(classes...), turn: make(chan struct{}, 1), cel: cel.NewCache(celExpressions, cel.Features{}),
		pools: openPools(h),
	}
}

// firstLook is how many claims the allocator reads from the API server at first when
// nothing fits; then twice as many, and so on.
const firstLook = 8

// maxChanges is how often an allocation begins again because the claim has changed.
// Its owner can change it at any rate.
const maxChanges = 20

// allocate gives the claim devices for the bind's node, and reserves it for the pod. The
// claim has the attempt's mark, and no write takes effect after the mark is removed. If
// somebody else has allocated the claim in the meantime, allocate returns it so. It
// rejects the bind if nothing on the node fits. Before that, it reads from the API server
// the claims that hold devices, while other allocations have their turn.
func (a *allocator) allocate(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	seen := sightings{}
	changes := 0
	for most := firstLook; ; {
		t, err := a.try(ctx, bc, claim, seen)
		switch {
		case err != nil || t.allocated != nil:
			return t.allocated, err
		case t.claim != nil:
			if t.claim.ResourceVersion != claim.ResourceVersion {
				changes++
			}
			if changes > maxChanges {
				return nil, framework.Wait(claimObject(claim.Namespace, claim.Name), "changed %d times during its allocation", changes).Advise("retry the Binding")
			}
			claim = t.claim
		case len(t.suspects) > 0:
			if err := a.look(ctx, t.suspects[:min(most, len(t.suspects))], seen); err != nil {
				return nil, err
			}
			most *= 2
		}
	}
}

// trial is the result of a try: one of its fields is set.
type trial struct {
	// allocated is the claim with its devices.
	allocated *resourcev1.ResourceClaim
	// claim is the claim as it is now, for another try.
	claim *resourcev1.ResourceClaim
	// suspects are claims that may have the devices that the claim needs.
	suspects []suspect
}

// try chooses devices and gives them to the claim. A replica runs one try at a time.
func (a *allocator) try(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, seen sightings) (trial, error) {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return trial{}, context.Cause(ctx)
	}
	about := claimObject(claim.Namespace, claim.Name)
	s, err := a.sceneOf(ctx, bc.Node)
	if err != nil {
		return trial{}, err
	}
	seen[claim.UID] = claim
	o := s.occupied(claim, bc.Attempt, seen)
	if o.contested {
		return a.contested(ctx, bc, claim, s)
	}
	result, err := a.fit(ctx, bc.Node, claim, s.slices, o.taken)
	if err != nil {
		return trial{}, err
	}
	if result != nil {
		return a.give(ctx, bc, claim, s, result)
	}
	if len(o.suspects) > 0 {
		// Check whether anything would fit if all suspects had no devices.
		possible, err := a.fit(ctx, bc.Node, claim, s.slices, o.certain)
		if err != nil {
			return trial{}, err
		}
		if possible != nil {
			return trial{suspects: o.toLookAt(devicesOf(possible))}, nil
		}
	}
	return trial{}, framework.Refuse(about, "no free devices on node %s match its requests", bc.Node.Name).
		Advise("choose another node, or wait until devices are released")
}

// contested ends a try for a claim that another attempt has taken devices for.
func (a *allocator) contested(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, s *scene) (trial, error) {
	t, err := a.asItIs(ctx, bc, claim, s)
	if err == nil && t.claim != nil && t.claim.ResourceVersion == claim.ResourceVersion {
		return trial{}, framework.Wait(claimObject(claim.Namespace, claim.Name), "another bind is allocating it").Advise("retry the Binding")
	}
	return t, err
}

// give writes the chosen devices, and reserves the claim for the pod: the finalizer
// first, as upstream does, then the records, and then the claim, on the condition that
// it has the version that the records name. If the claim has changed, all of that begins
// again, because another replica may have removed an entry of the records since.
func (a *allocator) give(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, s *scene, result *resourcev1.AllocationResult) (trial, error) {
	protected, err := a.protect(ctx, claim)
	if err == nil {
		e := entry{Claim: ledger.ObjectName(client.ObjectKeyFromObject(claim)), UID: claim.UID, Attempt: bc.Attempt, Version: protected.ResourceVersion}
		if err := a.pools.take(ctx, s.records, e, devicesOf(result)); errors.Is(err, ledger.ErrChanged) {
			return trial{claim: protected}, nil
		} else if err != nil {
			return trial{}, err
		}
		result.AllocationTimestamp = new(metav1.NewTime(a.h.Clock.Now()))
		var allocated *resourcev1.ResourceClaim
		if allocated, err = a.tryWrite(ctx, bc, protected, result); err == nil {
			return trial{allocated: allocated}, nil
		}
	}
	if apierrors.IsConflict(err) {
		return a.asItIs(ctx, bc, claim, s)
	}
	about := claimObject(claim.Namespace, claim.Name)
	if apierrors.IsNotFound(err) {
		return trial{}, framework.Refuse(about, "was deleted").Because(err).Advise("create it, or change the pod")
	}
	return trial{}, framework.FromAPI(about, "allocating it", err)
}

// asItIs returns the claim as it is now. If somebody else has allocated it, asItIs removes
// the devices that this attempt took from the records.
func (a *allocator) asItIs(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, s *scene) (trial, error) {
	about := claimObject(claim.Namespace, claim.Name)
	fresh, err := framework.Get(ctx, a.h.Live, &resourcev1.ResourceClaim{}, claim.Namespace, claim.Name)
	switch {
	case err != nil:
		return trial{}, err
	case fresh == nil, fresh.UID != claim.UID:
		return trial{}, framework.Refuse(about, "was deleted").Advise("create it, or change the pod")
	case fresh.Status.Allocation != nil:
		return trial{allocated: fresh}, a.pools.giveBack(ctx, s.pools, claim.UID, bc.Attempt, devicesOf(fresh.Status.Allocation))
	case fresh.DeletionTimestamp != nil:
		return trial{}, framework.Refuse(about, "is being deleted").Advise("create it again, or change the pod")
	case markOn(bc, fresh) == "":
		return trial{}, framework.Wait(about, "another replica rolled this bind back").Advise("retry the Binding")
	default:
		return trial{claim: fresh}, nil
	}
}

// protect adds the finalizer, and returns the claim as the API server returns it.
func (a *allocator) protect(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
		return claim, nil
	}
	protected := claim.DeepCopy()
	protected.Finalizers = append(protected.Finalizers, resourcev1.Finalizer)
	return protected, a.h.Writer.Patch(ctx, protected, whileAsIn(claim), fieldOwner)
}

// tryWrite writes the allocation and the reservation, and returns the claim as the API
// server returns it.
func (a *allocator) tryWrite(ctx context.Context, bc *framework.BindContext, before *resourcev1.ResourceClaim, result *resourcev1.AllocationResult) (*resourcev1.ResourceClaim, error) {
	claim := before.DeepCopy()
	claim.Status.Allocation = result
	if !reservedFor(claim, bc.Pod.UID) {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: bc.Pod.Name, UID: bc.Pod.UID,
		})
	}
	return claim, a.h.Status.Status().Patch(ctx, claim, whileAsIn(before), fieldOwner)
}

// whileAsIn returns a patch that fails if the claim has changed since before.
func whileAsIn(before *resourcev1.ResourceClaim) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// undo removes the allocation of a claim, as it is in the API server, if the records say
// that this attempt made it, and nothing but the bind's pod has reserved the claim. It
// says whether it did. It fails with a conflict if the claim has changed.
func (a *allocator) undo(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim) (bool, error) {
	if owned := owns(a.classes, claim) == nil; !owned || claim.Status.Allocation == nil {
		// Entries for a claim without devices are stale once the claim changes.
		return false, nil
	}
	if others := len(claim.Status.ReservedFor); others > 1 || others == 1 && !reservedFor(claim, bc.Pod.UID) {
		return false, nil
	}
	if gave, err := a.pools.gave(ctx, claim, bc.Attempt); err != nil || !gave {
		return false, err
	}
	if _, err := a.deallocate(ctx, claim); err != nil {
		return false, err
	}
	return true, a.pools.giveBack(ctx, poolsOf(devicesOf(claim.Status.Allocation)), claim.UID, bc.Attempt, nil)
}

// deallocate removes the devices from a claim that has not changed since it was read, and
// returns the claim as it is then.
func (a *allocator) deallocate(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	empty := claim.DeepCopy()
	empty.Status = resourcev1.ResourceClaimStatus{}
	return empty, a.h.Status.Status().Patch(ctx, empty, whileAsIn(claim), fieldOwner)
}
