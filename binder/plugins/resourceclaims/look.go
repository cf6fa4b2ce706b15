// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"errors"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// look reads the suspects from the API server. It deallocates claims that Prebind has
// allocated and that have no reservation.
func (a *allocator) look(ctx context.Context, suspects []suspect, seen sightings) error {
	for _, who := range suspects {
		claim, err := a.sight(ctx, who)
		if err != nil {
			return framework.FromAPI(claimObject(who.name.Namespace, who.name.Name), "checking its devices", err)
		}
		seen[who.uid] = claim
	}
	return nil
}

func (a *allocator) sight(ctx context.Context, who suspect) (*resourcev1.ResourceClaim, error) {
	claim := &resourcev1.ResourceClaim{}
	err := a.h.Live.Get(ctx, who.name, claim)
	switch {
	case apierrors.IsNotFound(err), err == nil && claim.UID != who.uid:
		return nil, nil
	case err != nil:
		return nil, err
	case claim.Status.Allocation == nil, len(claim.Status.ReservedFor) > 0:
		return claim, nil
	}
	if gave, err := a.pools.gave(ctx, claim, ""); err != nil || !gave {
		return claim, err
	}
	empty, err := a.deallocate(ctx, claim)
	switch {
	case err == nil:
		return empty, nil
	case apierrors.IsNotFound(err):
		return nil, nil
	case apierrors.IsConflict(err):
		return claim, nil // It has changed, so it may be in use.
	default:
		return nil, err
	}
}

// tidy removes stale entries from the records, and deallocates claims that Prebind has
// allocated and that have no reservation. It reads claims from the API server unless the
// cache shows that they are in use.
func (a *allocator) tidy(ctx context.Context) error {
	records, err := a.pools.List(ctx, a.h.Live)
	errs := []error{err}
	seen := sightings{}
	for _, v := range records {
		var stale []string
		for name, e := range v.Record.entries {
			device := v.Record.id.device(name)
			who := suspect{uid: e.UID, name: types.NamespacedName(e.Claim)}
			if _, looked := seen[e.UID]; !looked && a.usedByCache(ctx, who, device) {
				continue
			} else if !looked {
				if err := a.look(ctx, []suspect{who}, seen); err != nil {
					return errors.Join(append(errs, err)...)
				}
			}
			if seen.entry(e, device) == free {
				stale = append(stale, name)
			}
		}
		if len(stale) == 0 && len(v.Record.entries) > 0 {
			continue
		}
		if err := a.pools.drop(ctx, v, stale); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	return errors.Join(errs...)
}

// usedByCache reports whether the claim in the cache has the device and a reservation.
func (a *allocator) usedByCache(ctx context.Context, who suspect, device deviceID) bool {
	claim := &resourcev1.ResourceClaim{}
	err := a.h.Cached.Get(ctx, who.name, claim, client.UnsafeDisableDeepCopy)
	return err == nil && claim.UID == who.uid && len(claim.Status.ReservedFor) > 0 && devicesOf(claim.Status.Allocation).Has(device)
}
