// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"sync"

	"github.com/google/btree"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/volumes"
)

// FreeVolumes indexes the PersistentVolumes that a claim can be matched with, in matching order.
// Add it to an informer as an event handler of PersistentVolumes. The cost of reads does not
// depend on the number of volumes of other nodes.
//
// It keeps references to the objects and does not change them. It is safe for concurrent use.
type FreeVolumes struct {
	mu sync.Mutex
	// changed wakes the binds that have read the volume. It is set before the first event.
	changed func(client.Object)
	byName  map[string]*corev1.PersistentVolume
	// shelves are never empty.
	shelves map[place]shelf
}

// place is a class, and the only host that can use a volume, or empty.
type place struct{ class, host string }

// shelf holds the volumes of one place in matching order: by capacity, then by name.
type shelf = *btree.BTreeG[*corev1.PersistentVolume]

// shelfDegree is the degree of the B-tree of a shelf.
const shelfDegree = 16

var _ cache.ResourceEventHandler = (*FreeVolumes)(nil)

// NewFreeVolumes returns an index without volumes.
func NewFreeVolumes() *FreeVolumes {
	return &FreeVolumes{changed: func(client.Object) {}, byName: map[string]*corev1.PersistentVolume{}, shelves: map[place]shelf{}}
}

// OnAdd implements cache.ResourceEventHandler.
func (f *FreeVolumes) OnAdd(object any, _ bool) { f.OnUpdate(nil, object) }

// OnUpdate implements cache.ResourceEventHandler.
func (f *FreeVolumes) OnUpdate(_, object any) {
	if pv, ok := object.(*corev1.PersistentVolume); ok && isFree(pv) {
		f.replace(pv.Name, pv)
		return
	}
	f.OnDelete(object)
}

// OnDelete implements cache.ResourceEventHandler.
func (f *FreeVolumes) OnDelete(object any) {
	if name, err := cache.ObjectToName(object); err == nil {
		f.replace(name.Name, nil)
	}
}

// isFree returns whether a claim can be matched with the volume. FindMatchingVolume accepts other volumes only if they name the claim.
func isFree(pv *corev1.PersistentVolume) bool {
	return pv.Spec.ClaimRef == nil && pv.DeletionTimestamp == nil && pv.Status.Phase == corev1.VolumeAvailable
}

// replace replaces the volume with the name, or removes it if pv is nil.
func (f *FreeVolumes) replace(name string, pv *corev1.PersistentVolume) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.byName[name]; old != nil {
		at := placeOf(old)
		if f.shelves[at].Delete(old); f.shelves[at].Len() == 0 {
			delete(f.shelves, at)
		}
		delete(f.byName, name)
	}
	if pv != nil {
		at := placeOf(pv)
		if f.shelves[at] == nil {
			f.shelves[at] = btree.NewG(shelfDegree, before)
		}
		f.shelves[at].ReplaceOrInsert(pv)
		f.byName[name] = pv
	}
	f.changed(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// of returns the free volumes of the class, without those of other hosts. Some of them can be
// unusable on the node. The result is a snapshot.
func (f *FreeVolumes) of(class, host string) []shelf {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []shelf
	for at := range sets.New(place{class: class}, place{class: class, host: host}) {
		if on := f.shelves[at]; on != nil {
			found = append(found, on.Clone())
		}
	}
	return found
}

// before is the matching order. A missing capacity counts as 0.
func before(a, b *corev1.PersistentVolume) bool {
	x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name)) < 0
}

// placeOf returns the class of the volume, and the only value of the label kubernetes.io/hostname
// that its node affinity admits, as for local volumes. The affinity of a volume that can be migrated
// depends on the node.
func placeOf(pv *corev1.PersistentVolume) place {
	at := place{class: volume.GetPersistentVolumeClass(pv)}
	affinity := pv.Spec.NodeAffinity
	if volumes.IsMigratable(pv) || affinity == nil || affinity.Required == nil || len(affinity.Required.NodeSelectorTerms) != 1 {
		return at
	}
	for _, e := range affinity.Required.NodeSelectorTerms[0].MatchExpressions {
		if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
			at.host = e.Values[0]
		}
	}
	return at
}
