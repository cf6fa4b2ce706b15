// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// snapshot reads what the decision needs: from the cache, or, when live is set,
// from the API server. What there is to choose from is listed from the cache in
// any case; of that, live reads anew what the decision can depend on.
func (p *Plugin) snapshot(ctx context.Context, bc *framework.BindContext, live bool) (snapshot, error) {
	s := newSnapshot(bc.Pod, bc.Node)
	var from Getter = p.cached
	if live {
		from = p.live
		node := &corev1.Node{}
		if found, err := get(ctx, from, "Node", "", bc.Node.Name, node); err != nil {
			return s, err
		} else if found {
			s.node = node
		}
	}
	for _, ref := range claimRefs(bc.Pod) {
		claim := &corev1.PersistentVolumeClaim{}
		found, err := get(ctx, from, "PersistentVolumeClaim", bc.Pod.Namespace, ref.name, claim)
		if err != nil {
			return s, err
		}
		if !found {
			continue
		}
		s.claims[ref.name] = claim
		if err := p.readBehind(ctx, claim, from, s); err != nil {
			return s, err
		}
	}
	var err error
	s.csiNode, err = p.readCSINode(ctx, s.node.Name, s.migratable())
	return s, err
}

// migratable says whether one of the volumes that may be checked makes the node's
// CSINode count.
func (s snapshot) migratable() bool {
	for _, pv := range s.volumes {
		if migratable(pv) {
			return true
		}
	}
	for _, some := range s.reserved {
		if slices.ContainsFunc(some, migratable) {
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

// readBehind reads what stands behind a claim: its volume, or the volumes that
// it could get and its class.
func (p *Plugin) readBehind(ctx context.Context, claim *corev1.PersistentVolumeClaim, from Getter, s snapshot) error {
	if name := claim.Spec.VolumeName; name != "" {
		pv := &corev1.PersistentVolume{}
		found, err := get(ctx, from, "PersistentVolume", "", name, pv)
		if found {
			s.volumes[name] = pv
		}
		return err
	}
	reserved, err := p.listVolumes(ctx, claimBucket(claim.Namespace, claim.Name))
	if err != nil {
		return err
	}
	if s.reserved[claim.Name], err = p.refresh(ctx, reserved, claim, from); err != nil {
		return err
	}
	name := volume.GetPersistentVolumeClaimClass(claim)
	if name == "" || s.classes[name] != nil {
		return nil
	}
	class := &storagev1.StorageClass{}
	found, err := get(ctx, from, "StorageClass", "", name, class)
	if err != nil || !found {
		return err
	}
	s.classes[name] = class
	s.free[name] = p.free.of(name, s.node.Labels[corev1.LabelHostname])
	return p.readCapacity(ctx, class, from, s)
}

// listVolumes lists the volumes that name the claim, in the order of their names, so
// that two pods that use one claim choose the same volume for it.
func (p *Plugin) listVolumes(ctx context.Context, claim string) ([]*corev1.PersistentVolume, error) {
	var list corev1.PersistentVolumeList
	if err := p.cached.List(ctx, &list, client.MatchingFields{claimRefIndex: claim}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, framework.FromAPI(framework.Object{Kind: "PersistentVolume"}, "listing volumes", err)
	}
	var volumes []*corev1.PersistentVolume
	for i := range list.Items {
		volumes = append(volumes, &list.Items[i])
	}
	slices.SortFunc(volumes, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return volumes, nil
}

// refresh reads the volumes that name the claim, which are few, from the source. Of a bound volume the
// cache holds little, so it is read live in any case: the claim is about to be bound, too.
func (p *Plugin) refresh(ctx context.Context, reserved []*corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, from Getter) ([]*corev1.PersistentVolume, error) {
	var now []*corev1.PersistentVolume
	for _, pv := range reserved {
		if !names(pv, claim) {
			continue
		}
		if from != Getter(p.cached) || pv.Status.Phase == corev1.VolumeBound {
			name := pv.Name
			pv = &corev1.PersistentVolume{}
			if found, err := get(ctx, p.live, "PersistentVolume", "", name, pv); err != nil {
				return nil, err
			} else if !found || !volume.IsVolumeBoundToClaim(pv, claim) {
				continue
			}
		}
		now = append(now, pv)
	}
	return now, nil
}

// names says whether the volume's claimRef has the claim's name.
func names(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name
}

// readCapacity reads the driver of the class and, where it publishes any, the
// capacity that it has for the class.
func (p *Plugin) readCapacity(ctx context.Context, class *storagev1.StorageClass, from Getter, s snapshot) error {
	driver := &storagev1.CSIDriver{}
	found, err := get(ctx, from, "CSIDriver", "", class.Provisioner, driver)
	if err != nil || !found {
		return err
	}
	s.drivers[driver.Name] = driver
	if !publishesCapacity(driver) {
		return nil
	}
	var list storagev1.CSIStorageCapacityList
	if err := p.cached.List(ctx, &list, client.MatchingFields{capacityIndex: class.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return framework.FromAPI(framework.Object{Kind: "CSIStorageCapacity"}, "listing capacities", err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		if !reachableFrom(c, s.node.Labels) {
			continue
		}
		if from != Getter(p.cached) {
			// Amounts change all the time, objects seldom: the amount is read anew.
			key := client.ObjectKeyFromObject(c)
			c = &storagev1.CSIStorageCapacity{}
			if found, err := get(ctx, from, "CSIStorageCapacity", key.Namespace, key.Name, c); err != nil {
				return err
			} else if !found {
				continue
			}
		}
		s.capacities[class.Name] = append(s.capacities[class.Name], c)
	}
	return nil
}

// readCSINode reads the node's CSINode if a volume makes it count. It is not cached:
// few clusters have such volumes left.
func (p *Plugin) readCSINode(ctx context.Context, node string, counts bool) (*storagev1.CSINode, error) {
	if !counts {
		return nil, nil
	}
	csiNode := &storagev1.CSINode{}
	found, err := get(ctx, p.live, "CSINode", "", node, csiNode)
	if !found {
		return nil, err
	}
	return csiNode, nil
}

// get reads one object and says whether it exists. A name that no object can have
// (the provisioner kubernetes.io/no-provisioner is no CSIDriver) names none; a
// client would fail on it.
func get(ctx context.Context, from Getter, kind, namespace, name string, into client.Object) (bool, error) {
	if name == "" || len(content.IsPathSegmentName(name)) > 0 {
		return false, nil
	}
	err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, framework.FromAPI(framework.Object{Kind: kind, Namespace: namespace, Name: name}, "reading it", err)
	}
	return true, nil
}

// reader reads one object and says whether it exists.
type reader func(ctx context.Context, kind, namespace, name string, into client.Object) (bool, error)

// read is the reader of the cache. What the cache lacks is asked of the API
// server; bound pods are never in it.
func (p *Plugin) read(ctx context.Context, kind, namespace, name string, into client.Object) (bool, error) {
	if found, err := get(ctx, p.cached, kind, namespace, name, into); found || err != nil {
		return found, err
	}
	return get(ctx, p.live, kind, namespace, name, into)
}

// readLive is the reader of the API server.
func (p *Plugin) readLive(ctx context.Context, kind, namespace, name string, into client.Object) (bool, error) {
	return get(ctx, p.live, kind, namespace, name, into)
}
