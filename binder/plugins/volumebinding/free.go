// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"encoding/json"
	"sync"

	"github.com/google/btree"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/volumes"
)

// FreeVolumes indexes the PersistentVolumes that a claim can be matched with, in matching order.
// Add it to an informer as an event handler of PersistentVolumes. The cost of reads does not
// depend on the number of volumes of other nodes.
//
// It keeps references to the objects and does not change them. It is safe for concurrent use.
type FreeVolumes struct {
	mu       sync.Mutex
	onChange func(client.Object)
	byName   map[string]placed
	// shelves contains the shelves by place and likeness. A shelf is never empty.
	shelves map[place]map[string]*shelf
}

// place is a class, and the only host that can use a volume, or empty.
type place struct{ class, host string }

var _ cache.ResourceEventHandler = (*FreeVolumes)(nil)

// shelf holds volumes of one class that differ only in capacity and name for a claim without a
// selector. They are in matching order: by capacity, then by name.
type shelf struct {
	volumes *btree.BTreeG[*corev1.PersistentVolume]
	// migratable means that the volumes are of an in-tree plugin that can be migrated. Such
	// volumes are not alike, because each is matched with its translation.
	migratable bool
	// pending means that the volumes are not available yet.
	pending bool
}

// placed is a volume and its shelf.
type placed struct {
	place
	volume *corev1.PersistentVolume
	like   string
}

// NewFreeVolumes returns an index without volumes.
func NewFreeVolumes() *FreeVolumes {
	return &FreeVolumes{byName: map[string]placed{}, shelves: map[place]map[string]*shelf{}}
}

// OnAdd implements cache.ResourceEventHandler.
func (f *FreeVolumes) OnAdd(object any, _ bool) { f.OnUpdate(nil, object) }

// OnUpdate implements cache.ResourceEventHandler. An object of another type is a packed, bound
// volume; see volumes.PackVolume.
func (f *FreeVolumes) OnUpdate(_, object any) {
	if pv, ok := object.(*corev1.PersistentVolume); ok {
		f.put(pv)
		return
	}
	f.OnDelete(object)
}

// OnDelete implements cache.ResourceEventHandler.
func (f *FreeVolumes) OnDelete(object any) {
	if name, err := cache.DeletionHandlingObjectToName(object); err == nil {
		f.remove(name.Name)
	}
}

// isFree returns whether a claim can be matched with the volume, now or when the volume is
// available. FindMatchingVolume accepts other volumes only if they name the claim.
func isFree(pv *corev1.PersistentVolume) bool {
	return pv.Spec.ClaimRef == nil && pv.DeletionTimestamp == nil && (pv.Status.Phase == corev1.VolumeAvailable || isPending(pv))
}

// isPending returns whether the PersistentVolume controller has not handled the volume yet.
func isPending(pv *corev1.PersistentVolume) bool {
	return pv.Status.Phase == corev1.VolumePending || pv.Status.Phase == ""
}

// wake makes changes of the index wake the binds that have read the volume.
func (f *FreeVolumes) wake(wake func(client.Object)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onChange = wake
}

func (f *FreeVolumes) put(pv *corev1.PersistentVolume) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.take(pv.Name)
	if isFree(pv) {
		f.place(pv)
	}
	f.changed(pv.Name)
}

func (f *FreeVolumes) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.take(name)
	f.changed(name)
}

// changed must be called with mu held.
func (f *FreeVolumes) changed(name string) {
	if f.onChange != nil {
		f.onChange(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// place must be called with mu held.
func (f *FreeVolumes) place(pv *corev1.PersistentVolume) {
	inTree := volumes.IsMigratable(pv)
	at := placed{volume: pv, place: place{class: volume.GetPersistentVolumeClass(pv)}, like: likeness(pv, inTree)}
	if !inTree {
		at.host = onlyHost(pv)
	}
	if f.shelves[at.place] == nil {
		f.shelves[at.place] = map[string]*shelf{}
	}
	on := f.shelves[at.place][at.like]
	if on == nil {
		on = &shelf{volumes: btree.NewG(shelfDegree, before), migratable: inTree, pending: isPending(pv)}
		f.shelves[at.place][at.like] = on
	}
	on.volumes.ReplaceOrInsert(pv)
	f.byName[pv.Name] = at
}

// take must be called with mu held.
func (f *FreeVolumes) take(name string) {
	at, ok := f.byName[name]
	if !ok {
		return
	}
	delete(f.byName, name)
	on := f.shelves[at.place][at.like]
	if on.volumes.Delete(at.volume); on.volumes.Len() > 0 {
		return
	}
	if delete(f.shelves[at.place], at.like); len(f.shelves[at.place]) == 0 {
		delete(f.shelves, at.place)
	}
}

// shelfDegree is the degree of the B-tree of a shelf.
const shelfDegree = 16

// of returns the free volumes of the class, without those of other hosts. Some of them can be
// unusable on the node. The result is a snapshot.
func (f *FreeVolumes) of(class, host string) []shelf {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []shelf
	for at := range sets.New(place{class: class}, place{class: class, host: host}) {
		for _, on := range f.shelves[at] {
			found = append(found, shelf{volumes: on.volumes.Clone(), migratable: on.migratable, pending: on.pending})
		}
	}
	return found
}

// before is the matching order. A missing capacity counts as 0.
func before(a, b *corev1.PersistentVolume) bool {
	x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name)) < 0
}

// onlyHost returns the only value of the label kubernetes.io/hostname that the volume's node
// affinity admits, as for local volumes. It is empty if there is no such condition.
func onlyHost(pv *corev1.PersistentVolume) string {
	affinity := pv.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil || len(affinity.Required.NodeSelectorTerms) != 1 {
		return ""
	}
	for _, e := range affinity.Required.NodeSelectorTerms[0].MatchExpressions {
		if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
			return e.Values[0]
		}
	}
	return ""
}

// likeness is equal for two free volumes of a class if FindMatchingVolume distinguishes them only
// by capacity, name, and the claim's selector. It must contain all other fields that
// FindMatchingVolume reads.
func likeness(pv *corev1.PersistentVolume, inTree bool) string {
	like, err := json.Marshal(struct {
		Affinity   *corev1.VolumeNodeAffinity
		Modes      []corev1.PersistentVolumeAccessMode
		Mode       *corev1.PersistentVolumeMode
		Attributes *string
		InTree     bool
		Pending    bool
	}{pv.Spec.NodeAffinity, pv.Spec.AccessModes, pv.Spec.VolumeMode, pv.Spec.VolumeAttributesClassName, inTree, isPending(pv)})
	if err != nil {
		// Cannot happen. The name makes the volume unlike any other.
		return pv.Name
	}
	return string(like)
}
