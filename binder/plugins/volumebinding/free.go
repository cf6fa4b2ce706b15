// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"encoding/json"
	"sync"

	"github.com/google/btree"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
)

// FreeVolumes holds the PersistentVolumes that a claim can be matched with, in the
// order in which they are matched. It follows the events of an informer; add it as
// an event handler of PersistentVolumes. Reads do not depend on how many volumes
// other nodes have.
//
// It keeps the objects that it is given and does not change them. It is safe for
// concurrent use.
type FreeVolumes struct {
	mu      sync.Mutex
	changes *framework.Hub
	byName  map[string]placed
	// shelves are by class, node and likeness. A shelf is never empty.
	shelves map[string]map[string]map[string]*shelf
}

var _ cache.ResourceEventHandler = (*FreeVolumes)(nil)

// shelf holds volumes of one class that are alike: for a claim without a selector
// they differ in capacity and name only. The order is that of matching: the
// smallest first, and of equals the first by name.
type shelf struct {
	volumes *btree.BTreeG[*corev1.PersistentVolume]
	// migratable says that the volumes are of an in-tree plugin that can have been
	// migrated. Such volumes are not alike: each is judged by its translation.
	migratable bool
	// pending says that the volumes are not available yet.
	pending bool
}

// placed is a volume, and where it is.
type placed struct {
	volume            *corev1.PersistentVolume
	class, host, like string
}

// NewFreeVolumes returns an index without volumes.
func NewFreeVolumes() *FreeVolumes {
	return &FreeVolumes{byName: map[string]placed{}, shelves: map[string]map[string]map[string]*shelf{}}
}

// OnAdd implements cache.ResourceEventHandler.
func (f *FreeVolumes) OnAdd(object any, _ bool) { f.OnUpdate(nil, object) }

// OnUpdate implements cache.ResourceEventHandler. An object of another type is what the
// cache holds of a bound volume; see packVolume.
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

// isFree says whether a claim can be matched with the volume, now or when the
// volume is available. Of the volumes that are not free, FindMatchingVolume accepts
// only those that name the claim.
func isFree(pv *corev1.PersistentVolume) bool {
	return pv.Spec.ClaimRef == nil && pv.DeletionTimestamp == nil && (pv.Status.Phase == corev1.VolumeAvailable || isPending(pv))
}

// isPending says whether the PersistentVolume controller has not seen the volume yet.
func isPending(pv *corev1.PersistentVolume) bool {
	return pv.Status.Phase == corev1.VolumePending || pv.Status.Phase == ""
}

// follows says whether the index has seen this state of the volume, or a later one
// in which the volume is free. A volume that is not free counts as seen.
func (f *FreeVolumes) follows(pv *corev1.PersistentVolume) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, ok := f.byName[pv.Name]
	return !isFree(pv) || ok && !older(seen.volume, pv)
}

// wake makes every change of the index wake the subscriptions to the volume.
func (f *FreeVolumes) wake(changes *framework.Hub) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes = changes
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
	if f.changes != nil {
		f.changes.Changed(framework.RefTo(&corev1.PersistentVolume{}, "", name))
	}
}

// place must be called with mu held.
func (f *FreeVolumes) place(pv *corev1.PersistentVolume) {
	inTree := migratable(pv)
	at := placed{volume: pv, class: volume.GetPersistentVolumeClass(pv), like: likeness(pv, inTree)}
	if !inTree {
		at.host = onlyHost(pv)
	}
	hosts := f.shelves[at.class]
	if hosts == nil {
		hosts = map[string]map[string]*shelf{}
		f.shelves[at.class] = hosts
	}
	if hosts[at.host] == nil {
		hosts[at.host] = map[string]*shelf{}
	}
	on := hosts[at.host][at.like]
	if on == nil {
		on = &shelf{volumes: btree.NewG(shelfDegree, before), migratable: inTree, pending: isPending(pv)}
		hosts[at.host][at.like] = on
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
	hosts := f.shelves[at.class]
	on := hosts[at.host][at.like]
	on.volumes.Delete(at.volume)
	if on.volumes.Len() > 0 {
		return
	}
	delete(hosts[at.host], at.like)
	if len(hosts[at.host]) == 0 {
		delete(hosts, at.host)
	}
	if len(hosts) == 0 {
		delete(f.shelves, at.class)
	}
}

// shelfDegree is that of a shelf's tree.
const shelfDegree = 16

// of returns the free volumes of the class that a node with this hostname label can
// have. Some of them may be unusable there. They do not change any more.
func (f *FreeVolumes) of(class, host string) []shelf {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []shelf
	add := func(host string) {
		for _, on := range f.shelves[class][host] {
			found = append(found, shelf{volumes: on.volumes.Clone(), migratable: on.migratable, pending: on.pending})
		}
	}
	add("")
	if host != "" {
		add(host)
	}
	return found
}

// before is the order in which volumes are matched. A volume without a capacity
// has none.
func before(a, b *corev1.PersistentVolume) bool {
	x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
	return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name)) < 0
}

// onlyHost returns the one value of the label kubernetes.io/hostname with which a
// node can use the volume, as for local volumes. It is empty where the node
// affinity does not begin with such a condition.
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

// likeness is equal for two free volumes of a class if FindMatchingVolume treats
// them alike but for their capacity, their name, and the claim's selector. It has
// to hold all other fields that FindMatchingVolume looks at.
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
		// It cannot happen to these types. Such a volume is like no other.
		return pv.Name
	}
	return string(like)
}
