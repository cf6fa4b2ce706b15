// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// scene contains the pools with devices for a node, and the claims with devices of these
// pools. Its size does not depend on the rest of the cluster.
type scene struct {
	pools []poolID
	// slices contains all slices of the pools, because the allocator checks whether a pool
	// is complete.
	slices []*resourcev1.ResourceSlice
	// claims contains the claims that have devices of the pools according to the cache.
	claims []*resourcev1.ResourceClaim
	// records contains the records of the pools in the API server.
	records []*poolVersion
}

// sceneOf reads the scene. It fails if a record cannot be decoded, because any claim may
// hold the devices.
func (a *allocator) sceneOf(ctx context.Context, node *corev1.Node) (*scene, error) {
	s := &scene{}
	found := sets.New[poolID]()
	for _, name := range []string{node.Name, ""} {
		list, err := a.slicesBy(ctx, nodeIndex, name)
		if err != nil {
			return nil, err
		}
		for _, slice := range list {
			if serves(slice, node) {
				found.Insert(poolOf(slice))
			}
		}
	}
	s.pools = inOrder(found)
	claims := sets.New[types.UID]()
	for _, id := range s.pools {
		list, err := a.slicesBy(ctx, poolIndex, id.key())
		if err != nil {
			return nil, err
		}
		s.slices = append(s.slices, list...)
		var held resourcev1.ResourceClaimList
		if err := a.h.Cached.List(ctx, &held, client.MatchingFields{heldIndex: id.key()}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
		for i := range held.Items {
			if claim := &held.Items[i]; !claims.Has(claim.UID) {
				claims.Insert(claim.UID)
				s.claims = append(s.claims, claim)
			}
		}
	}
	var err error
	s.records, err = a.pools.read(ctx, s.pools)
	return s, err
}

func (a *allocator) slicesBy(ctx context.Context, field, value string) ([]*resourcev1.ResourceSlice, error) {
	var list resourcev1.ResourceSliceList
	if err := a.h.Cached.List(ctx, &list, client.MatchingFields{field: value}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	found := make([]*resourcev1.ResourceSlice, 0, len(list.Items))
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	return found, nil
}

// serves reports whether the slice can have devices for the node. It returns true for
// invalid selectors, so that the allocator reports them.
func serves(slice *resourcev1.ResourceSlice, node *corev1.Node) bool {
	matches := func(name *string, all *bool, selector *corev1.NodeSelector) bool {
		ok, err := structured.NodeMatches(features, node, ptr.Deref(name, ""), ptr.Deref(all, false), selector)
		return ok || err != nil
	}
	if ptr.Deref(slice.Spec.PerDeviceNodeSelection, false) {
		return slices.ContainsFunc(slice.Spec.Devices, func(d resourcev1.Device) bool { return matches(d.NodeName, d.AllNodes, d.NodeSelector) })
	}
	return matches(slice.Spec.NodeName, slice.Spec.AllNodes, slice.Spec.NodeSelector)
}

// sightings contains the claims that this allocation has read from the API server, by UID.
// The value is nil for a claim that does not exist.
type sightings map[types.UID]*resourcev1.ResourceClaim

// standing is the state of a device.
type standing int

const (
	// unknown: the records or the cache show the device in use.
	unknown standing = iota
	// inUse: the API server shows the device in use.
	inUse
	// free: the claim no longer has the device.
	free
)

func (s sightings) entry(e entry, device deviceID) standing {
	claim, seen := s[e.UID]
	switch {
	case !seen:
		return unknown
	case claim == nil:
		return free
	case devicesOf(claim.Status.Allocation).Has(device):
		return inUse
	}
	order, err := resourceversion.CompareResourceVersion(e.Version, claim.ResourceVersion)
	switch {
	case err != nil || order < 0:
		return free // A write that requires this version fails.
	case order == 0:
		return inUse
	default:
		return unknown // The entry is newer than the claim that was read.
	}
}

// claim decides on a device that the claim in the cache has.
func (s sightings) claim(cached *resourcev1.ResourceClaim, device deviceID) standing {
	claim, seen := s[cached.UID]
	switch {
	case !seen:
		return unknown
	case claim == nil:
		return free
	case devicesOf(claim.Status.Allocation).Has(device):
		return inUse
	case newer(cached, claim):
		return unknown
	default:
		return free
	}
}

// suspect is a claim that may have a device.
type suspect struct {
	uid  types.UID
	name types.NamespacedName
}

// occupation contains the devices of the scene that are in use.
type occupation struct {
	// certain contains the devices that are in use, and taken also those that may be.
	certain, taken sets.Set[deviceID]
	// suspects contains the claims to check, for devices that are not certain.
	suspects map[deviceID][]suspect
	// contested reports that another attempt is allocating the claim.
	contested bool
}

// occupied returns the devices that other claims, or other attempts for this claim, have.
// Its time is proportional to the devices of the scene.
func (s *scene) occupied(claim *resourcev1.ResourceClaim, attempt string, seen sightings) occupation {
	o := occupation{certain: sets.New[deviceID](), taken: sets.New[deviceID](), suspects: map[deviceID][]suspect{}}
	note := func(device deviceID, is standing, who suspect) {
		switch is {
		case inUse:
			o.taken.Insert(device)
			o.certain.Insert(device)
		case unknown:
			o.taken.Insert(device)
			o.suspects[device] = append(o.suspects[device], who)
		case free:
		}
	}
	for _, v := range s.records {
		for name, e := range v.Record.entries {
			if e.UID == claim.UID && e.Attempt == attempt {
				continue
			}
			device := v.Record.id.device(name)
			is := seen.entry(e, device)
			if e.UID == claim.UID {
				o.contested = o.contested || is != free
			}
			note(device, is, suspect{uid: e.UID, name: types.NamespacedName(e.Claim)})
		}
	}
	for _, c := range s.claims {
		if c.UID == claim.UID {
			continue
		}
		for device := range devicesOf(c.Status.Allocation) {
			note(device, seen.claim(c, device), suspect{uid: c.UID, name: client.ObjectKeyFromObject(c)})
		}
	}
	return o
}

// toLookAt returns the suspects, those of the wanted devices first.
func (o occupation) toLookAt(wanted sets.Set[deviceID]) []suspect {
	order := make([]deviceID, 0, len(o.suspects))
	for device := range o.suspects {
		order = append(order, device)
	}
	slices.SortFunc(order, func(a, b deviceID) int {
		switch {
		case wanted.Has(a) != wanted.Has(b) && wanted.Has(a):
			return -1
		case wanted.Has(a) != wanted.Has(b):
			return 1
		default:
			return strings.Compare(a.String(), b.String())
		}
	})
	listed := sets.New[types.UID]()
	var all []suspect
	for _, device := range order {
		for _, who := range o.suspects[device] {
			if !o.certain.Has(device) && !listed.Has(who.uid) {
				listed.Insert(who.uid)
				all = append(all, who)
			}
		}
	}
	return all
}
