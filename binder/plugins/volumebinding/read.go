// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
	"github.com/prebind/prebind/binder/notify"
)

// classIndex finds the volumes of a class in the cache.
const classIndex = "volumebinding/class"

// Watches are the kinds that Options.Cached has to hold for this plugin.
func Watches() map[string]client.Object {
	return map[string]client.Object{
		"PersistentVolumeClaim": &corev1.PersistentVolumeClaim{},
		"PersistentVolume":      &corev1.PersistentVolume{},
		"StorageClass":          &storagev1.StorageClass{},
	}
}

// SetupIndexes adds the index that the plugin needs to the cache that Options.Cached
// reads. Call it before the cache is started.
func SetupIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	return indexer.IndexField(ctx, &corev1.PersistentVolume{}, classIndex, func(o client.Object) []string {
		pv, ok := o.(*corev1.PersistentVolume)
		if !ok {
			return nil
		}
		return []string{volume.GetPersistentVolumeClass(pv)}
	})
}

// plan reads what the decision needs, single objects from the given source and
// the volumes to choose from always from the cache, and decides.
func (p *Plugin) plan(ctx context.Context, bc *api.BindContext, from Getter) (plan, error) {
	s := snapshot{
		pod:        bc.Pod,
		node:       bc.Node,
		claims:     map[string]*corev1.PersistentVolumeClaim{},
		volumes:    map[string]*corev1.PersistentVolume{},
		classes:    map[string]*storagev1.StorageClass{},
		candidates: map[string][]*corev1.PersistentVolume{},
	}
	if from != Getter(p.cached) {
		node := &corev1.Node{}
		if found, err := get(ctx, from, "Node", "", bc.Node.Name, node); err != nil {
			return plan{}, err
		} else if found {
			s.node = node
		}
	}
	for _, ref := range claimRefs(bc.Pod) {
		claim := &corev1.PersistentVolumeClaim{}
		found, err := get(ctx, from, "PersistentVolumeClaim", bc.Pod.Namespace, ref.name, claim)
		if err != nil {
			return plan{}, err
		}
		if !found {
			continue
		}
		s.claims[ref.name] = claim
		if err := p.readBehind(ctx, claim, from, s); err != nil {
			return plan{}, err
		}
	}
	return decide(s)
}

// readBehind reads what stands behind a claim: its volume, or its class and the
// volumes it could get.
func (p *Plugin) readBehind(ctx context.Context, claim *corev1.PersistentVolumeClaim, from Getter, s snapshot) error {
	if name := claim.Spec.VolumeName; name != "" {
		pv := &corev1.PersistentVolume{}
		found, err := get(ctx, from, "PersistentVolume", "", name, pv)
		if found {
			s.volumes[name] = pv
		}
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
	var list corev1.PersistentVolumeList
	if err := p.cached.List(ctx, &list, client.MatchingFields{classIndex: name}, client.UnsafeDisableDeepCopy); err != nil {
		return api.FromAPI(api.Object{Kind: "StorageClass", Name: name}, "listing its volumes", err)
	}
	for i := range list.Items {
		s.candidates[name] = append(s.candidates[name], &list.Items[i])
	}
	return nil
}

// get reads one object and says whether it exists.
func get(ctx context.Context, from Getter, kind, namespace, name string, into client.Object) (bool, error) {
	err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, api.FromAPI(api.Object{Kind: kind, Namespace: namespace, Name: name}, "reading it", err)
	}
	return true, nil
}

// read reads one object from the cache and, when the cache lacks it, from the
// API server. It says whether the object exists.
func (p *Plugin) read(ctx context.Context, kind, namespace, name string, into client.Object) (bool, error) {
	if found, err := get(ctx, p.cached, kind, namespace, name, into); found || err != nil {
		return found, err
	}
	return get(ctx, p.live, kind, namespace, name, into)
}

func claimKey(claim *corev1.PersistentVolumeClaim) notify.Key {
	return notify.Key{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name}
}

func volumeKey(name string) notify.Key { return notify.Key{Kind: "PersistentVolume", Name: name} }
