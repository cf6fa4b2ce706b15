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

// allocator allocates claims of the DeviceClasses that the operator assigns to Prebind. It
// first writes each device into the record of its pool, and then into the claim, so that
// replicas never allocate a device twice. It is safe for concurrent use.
//
// Each write of an allocation requires the version of the claim that the entry in the record
// names. An entry is therefore stale for good when the claim has a later version and does
// not have the device.
type allocator struct {
	h framework.Handle
	// classes are the DeviceClasses that only Prebind allocates.
	classes sets.Set[string]
	pools   pools
	// turn serializes allocations, because all of them choose from the same devices.
	turn chan struct{}
	cel  *cel.Cache
}

func newAllocator(h framework.Handle, classes []string) *allocator {
	return &allocator{
		h: h, classes: sets.New(classes...), turn: make(chan struct{}, 1), cel: cel.NewCache(celExpressions, cel.Features{}),
		pools: openPools(h),
	}
}

// firstLook is the number of claims that the allocator first reads from the API server if
// nothing fits. The number doubles with each further read.
const firstLook = 8

// maxChanges limits how often an allocation starts over because the claim has changed. The
// owner of the claim can change it at any rate.
const maxChanges = 20

// allocate allocates devices of the node to the claim, and reserves it for the pod. The
// claim must have the mark of the attempt; no write takes effect once the mark is removed.
// If the claim has been allocated in the meantime, allocate returns it unchanged. It rejects
// the bind if no free devices on the node match. Before it rejects, it reads the claims that
// hold devices from the API server. Other allocations can run during these reads.
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

// trial is the result of try. Exactly one field is set.
type trial struct {
	// allocated is the claim with its devices.
	allocated *resourcev1.ResourceClaim
	// claim is the current claim, for another try.
	claim *resourcev1.ResourceClaim
	// suspects are claims that may hold matching devices.
	suspects []suspect
}

// try chooses devices and allocates them to the claim. A replica runs one try at a time.
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
		// Check whether anything matches if all suspects are free.
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

// contested ends a try for a claim that another attempt is allocating.
func (a *allocator) contested(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, s *scene) (trial, error) {
	t, err := a.asItIs(ctx, bc, claim, s)
	if err == nil && t.claim != nil && t.claim.ResourceVersion == claim.ResourceVersion {
		return trial{}, framework.Wait(claimObject(claim.Namespace, claim.Name), "another bind is allocating it").Advise("retry the Binding")
	}
	return t, err
}

// give writes the allocation and the reservation: first the finalizer, like upstream, then
// the records, and then the claim, on the condition that it has the version in the records.
// If the claim has changed, the allocation starts over, because another replica may have
// removed the entries from the records.
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

// asItIs returns the current claim. If the claim has been allocated in the meantime, asItIs
// removes the entries of this attempt from the records.
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

// protect adds the finalizer, and returns the updated claim.
func (a *allocator) protect(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
		return claim, nil
	}
	protected := claim.DeepCopy()
	protected.Finalizers = append(protected.Finalizers, resourcev1.Finalizer)
	return protected, a.h.Writer.Patch(ctx, protected, whileAsIn(claim), fieldOwner)
}

// tryWrite writes the allocation and the reservation, and returns the updated claim.
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

// undo deallocates the claim if the records show that this attempt allocated it, and if it
// is reserved for no other pod. It reports whether it did. claim must be from the API
// server; undo fails with a conflict if it has changed.
func (a *allocator) undo(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim) (bool, error) {
	if owned := owns(a.classes, claim) == nil; !owned || claim.Status.Allocation == nil {
		// Entries of a claim without devices become stale when the claim changes.
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

// deallocate removes the allocation of the claim, and returns the updated claim. It fails
// with a conflict if the claim has changed.
func (a *allocator) deallocate(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	empty := claim.DeepCopy()
	empty.Status = resourcev1.ResourceClaimStatus{}
	return empty, a.h.Status.Status().Patch(ctx, empty, whileAsIn(claim), fieldOwner)
}
