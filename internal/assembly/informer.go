// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Informer keeps the objects of a selection, and calls its handlers by the rules of client-go's informers, in the goroutine of the watch. The
// informer of client-go hands each object over to three more goroutines. Every bind changes a pod, and waking these goroutines is a large part
// of the CPU time of a bind. So handlers must not block, and must not add handlers.
//
// It has no resyncs, and handlers cannot be removed. OnDelete gets the object of the store, also if the watch missed the deletion. It is safe for
// concurrent use.
type Informer struct {
	want  framework.Selection
	lists toolscache.ListerWatcher
	store toolscache.Indexer
	// replaced is called after Replace. It may be nil.
	replaced func()
	// mu is held while an object is stored and the handlers are called.
	mu       sync.Mutex
	handlers []toolscache.ResourceEventHandler
	synced   atomic.Bool
}

var _ toolscache.TransformingStore = (*Informer)(nil)

// newInformer returns an informer that does not run yet.
func newInformer(want framework.Selection, lists toolscache.ListerWatcher) *Informer {
	if want.Transform == nil {
		want.Transform = cache.TransformStripManagedFields()
	}
	indexers := toolscache.Indexers{}
	if want.Value == nil {
		indexers[toolscache.NamespaceIndex] = toolscache.MetaNamespaceIndexFunc
	} else {
		indexers[bucketIndex] = func(o any) ([]string, error) {
			object, ok := o.(client.Object)
			if !ok {
				return nil, nil
			}
			return []string{bucketOf(want.Value(object))}, nil
		}
	}
	return &Informer{want: want, lists: lists, store: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indexers)}
}

// Run lists and watches the objects until the context ends. Call it once.
func (i *Informer) Run(ctx context.Context) {
	toolscache.NewReflectorWithOptions(i.lists, i.want.Example, i, toolscache.ReflectorOptions{Name: i.want.Name}).RunWithContext(ctx)
}

// AddEventHandler adds a handler. It knows all objects of the store when the method returns.
func (i *Informer) AddEventHandler(h toolscache.ResourceEventHandler) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, o := range i.store.List() {
		h.OnAdd(o, true)
	}
	i.handlers = append(i.handlers, h)
}

// Store returns the store with the objects. Only read it, and do not change its objects.
func (i *Informer) Store() toolscache.Indexer { return i.store }

// HasSynced returns whether the store has had all objects, and the handlers know them.
func (i *Informer) HasSynced() bool { return i.synced.Load() }

// Transformer implements toolscache.TransformingStore.
func (i *Informer) Transformer() toolscache.TransformFunc { return i.want.Transform }

// Add implements toolscache.ReflectorStore.
func (i *Informer) Add(o any) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, err := i.put(o)
	return err
}

// Update implements toolscache.ReflectorStore.
func (i *Informer) Update(o any) error { return i.Add(o) }

// put stores an object, calls the handlers unless it is unchanged, and returns its key.
func (i *Informer) put(o any) (string, error) {
	o, err := i.want.Transform(o)
	if err != nil {
		return "", err
	}
	key, err := toolscache.MetaNamespaceKeyFunc(o)
	if err != nil {
		return "", err
	}
	before, existed, err := i.store.GetByKey(key)
	if err == nil {
		err = i.store.Update(o)
	}
	for _, h := range i.handlers {
		switch {
		case err != nil:
		case !existed:
			h.OnAdd(o, !i.HasSynced())
		case resourceVersionOf(before) != resourceVersionOf(o):
			h.OnUpdate(before, o)
		}
	}
	return key, err
}

// resourceVersionOf returns the resource version of an object of the store.
func resourceVersionOf(o any) string {
	if object, ok := o.(client.Object); ok {
		return object.GetResourceVersion()
	}
	return ""
}

// Delete implements toolscache.ReflectorStore.
func (i *Informer) Delete(o any) error {
	key, err := toolscache.MetaNamespaceKeyFunc(o)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.remove(key)
}

// remove removes the object with the key from the store, if it is there, and calls the handlers.
func (i *Informer) remove(key string) error {
	last, existed, err := i.store.GetByKey(key)
	if err != nil || !existed {
		return err
	}
	if err := i.store.Delete(last); err != nil {
		return err
	}
	for _, h := range i.handlers {
		h.OnDelete(last)
	}
	return nil
}

// Replace implements toolscache.ReflectorStore.
func (i *Informer) Replace(list []any, _ string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	listed := make(sets.Set[string], len(list))
	for _, o := range list {
		key, err := i.put(o)
		if err != nil {
			return err
		}
		listed.Insert(key)
	}
	for _, key := range i.store.ListKeys() {
		if listed.Has(key) {
			continue
		}
		if err := i.remove(key); err != nil {
			return err
		}
	}
	i.synced.Store(true)
	if i.replaced != nil {
		i.replaced()
	}
	return nil
}

// Resync implements toolscache.ReflectorStore.
func (i *Informer) Resync() error { return nil }
