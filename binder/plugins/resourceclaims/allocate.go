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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// celExpressions is how many compiled expressions of classes and claims are kept.
const celExpressions = 100

// OwnedOptions are those of an OwnedClasses. All fields are required.
type OwnedOptions struct {
	// Classes are the DeviceClasses that Prebind alone allocates.
	Classes []string
	// Cached holds what the Registration watches.
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
// Every write of an allocation is on the condition of a version of the claim, which
// the entry of the record names. So an entry is stale, and stays so, when the claim
// has a later version and not the device.
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

// firstLook is how many claims are read from the API server at first when nothing
// fits; then twice as many, and so on.
const firstLook = 8

// maxChanges is how often an allocation begins again because the claim has changed.
// Its owner can change it at any rate.
const maxChanges = 20

// Allocate implements Allocator. Nothing is refused by the cache alone: what stands in
// the way is read from the API server, while other allocations have their turn.
func (a *OwnedClasses) Allocate(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
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
				return nil, framework.Wait(claimObject(claim.Namespace, claim.Name), "it changed %d times while it was being allocated", changes).Advise("repeat the Binding")
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

// trial is what came of a try: one of its fields.
type trial struct {
	// allocated is the claim with its devices.
	allocated *resourcev1.ResourceClaim
	// claim is the claim as it has become, to try with.
	claim *resourcev1.ResourceClaim
	// suspects may have the devices that the claim needs.
	suspects []suspect
}

// try chooses devices and gives them to the claim, one try in the replica at a time.
func (a *OwnedClasses) try(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, seen sightings) (trial, error) {
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
		// Would anything fit if whoever is not certain to have a device had none?
		possible, err := a.fit(ctx, bc.Node, claim, s.slices, o.certain)
		if err != nil {
			return trial{}, err
		}
		if possible != nil {
			return trial{suspects: o.toLookAt(devicesOf(possible))}, nil
		}
	}
	return trial{}, framework.Refuse(about, "nothing that is free on the node %s fits its requests", bc.Node.Name).
		Advise("choose another node, or wait until devices are given back")
}

// contested is a try for a claim that another attempt has taken devices for.
func (a *OwnedClasses) contested(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, s *scene) (trial, error) {
	t, err := a.asItIs(ctx, bc, claim, s)
	if err == nil && t.claim != nil && t.claim.ResourceVersion == claim.ResourceVersion {
		return trial{}, framework.Wait(claimObject(claim.Namespace, claim.Name), "another bind is allocating it").Advise("repeat the Binding")
	}
	return t, err
}

// give gives the claim what was chosen, and reserves it for the pod: the finalizer
// first, as upstream does, then the records, and then the claim, on the condition of
// the version that the records name. Where the claim has changed, all of that begins
// again: a record that another replica has dropped in the meantime does not count.
func (a *OwnedClasses) give(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, s *scene, result *resourcev1.AllocationResult) (trial, error) {
	protected, err := a.protect(ctx, claim)
	if err == nil {
		e := entry{Claim: name(claim), UID: claim.UID, Attempt: bc.Attempt, Version: protected.ResourceVersion}
		if err := a.pools.take(ctx, s.records, e, devicesOf(result)); errors.Is(err, errOthersWrote) {
			return trial{claim: protected}, nil
		} else if err != nil {
			return trial{}, err
		}
		result.AllocationTimestamp = new(metav1.NewTime(a.o.Clock.Now()))
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
		return trial{}, framework.Refuse(about, "the claim is gone").Because(err).Advise("create it, or correct the pod")
	}
	return trial{}, framework.FromAPI(about, "allocating it", err)
}

// asItIs returns the claim as it has become. When somebody else has allocated it, that
// stands, and what was taken for it is given back.
func (a *OwnedClasses) asItIs(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim, s *scene) (trial, error) {
	about := claimObject(claim.Namespace, claim.Name)
	fresh := &resourcev1.ResourceClaim{}
	err := a.o.Live.Get(ctx, client.ObjectKeyFromObject(claim), fresh)
	switch {
	case apierrors.IsNotFound(err), err == nil && fresh.UID != claim.UID:
		return trial{}, framework.Refuse(about, "the claim is gone").Because(err).Advise("create it, or correct the pod")
	case err != nil:
		return trial{}, framework.FromAPI(about, "allocating it", err)
	case fresh.Status.Allocation != nil:
		return trial{allocated: fresh}, a.pools.giveBack(ctx, s.pools, claim.UID, bc.Attempt, devicesOf(fresh.Status.Allocation))
	case fresh.DeletionTimestamp != nil:
		return trial{}, framework.Refuse(about, "the claim is being deleted").Advise("make it anew, or correct the pod")
	case !markedBy(fresh, string(bc.Pod.UID)+"."+bc.Attempt):
		return trial{}, framework.Wait(about, "this bind was rolled back by another replica").Advise("repeat the Binding")
	default:
		return trial{claim: fresh}, nil
	}
}

// protect adds the finalizer, and returns the claim as the API server has answered.
func (a *OwnedClasses) protect(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	if slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
		return claim, nil
	}
	protected := claim.DeepCopy()
	protected.Finalizers = append(protected.Finalizers, resourcev1.Finalizer)
	return protected, a.o.Writer.Patch(ctx, protected, whileAsIn(claim), fieldOwner)
}

// tryWrite returns the claim as the API server has answered.
func (a *OwnedClasses) tryWrite(ctx context.Context, bc *framework.BindContext, before *resourcev1.ResourceClaim, result *resourcev1.AllocationResult) (*resourcev1.ResourceClaim, error) {
	claim := before.DeepCopy()
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

// Undo implements Allocator. The allocation goes only when the records say that this
// attempt made it, and no other pod, or anything else, has reserved the claim.
func (a *OwnedClasses) Undo(ctx context.Context, bc *framework.BindContext, claim *resourcev1.ResourceClaim) (bool, error) {
	if owned := a.Owns(ctx, claim) == nil; !owned || claim.Status.Allocation == nil {
		// What is in the records for a claim without devices is stale once the claim changes.
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

// deallocate takes the devices from a claim that is as it was read, and returns it as
// it is then.
func (a *OwnedClasses) deallocate(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	empty := claim.DeepCopy()
	empty.Status = resourcev1.ResourceClaimStatus{}
	return empty, a.o.Status.Status().Patch(ctx, empty, whileAsIn(claim), fieldOwner)
}

// markedBy says whether the claim has a mark of the attempt, for whichever pod, or of
// the attempt at the pod's bind: UID.ATTEMPT.
func markedBy(claim *resourcev1.ResourceClaim, attempt string) bool {
	for key := range claim.Annotations {
		if strings.HasPrefix(key, Name+".") && (strings.HasSuffix(key, "."+attempt) || strings.HasSuffix(key, "/"+attempt)) {
			return true
		}
	}
	return false
}

func name(claim *resourcev1.ResourceClaim) claimName {
	return claimName{Namespace: claim.Namespace, Name: claim.Name}
}
