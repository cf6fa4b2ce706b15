// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
)

// informer is a SharedIndexInformer whose watch stores each object and calls the handlers itself. That of client-go hands each object over to
// three more goroutines. Every bind changes a pod, and waking these goroutines is a large part of the CPU time of a bind. So handlers must
// not block, and must not add handlers.
//
// It has no resyncs, and handlers cannot be removed.
type informer struct {
	// The store and the methods that the cache does not call are those of an informer that never runs.
	toolscache.SharedIndexInformer
	config    toolscache.Config
	transform toolscache.TransformFunc
	// mu is held while an object is stored and the handlers are called.
	mu       sync.Mutex
	handlers []toolscache.ResourceEventHandler
	// synced is closed when the store has all objects and the handlers know them, and closed when the informer ends.
	synced, closed chan struct{}
}

var (
	_ toolscache.SharedIndexInformer              = (*informer)(nil)
	_ toolscache.Queue                            = (*informer)(nil)
	_ toolscache.TransformingStore                = (*informer)(nil)
	_ toolscache.ResourceEventHandlerRegistration = (*informer)(nil)
)

// newInformer returns an informer that does not run yet.
func newInformer(lw toolscache.ListerWatcher, example runtime.Object, indexers toolscache.Indexers) *informer {
	i := &informer{SharedIndexInformer: toolscache.NewSharedIndexInformer(lw, example, 0, indexers), synced: make(chan struct{}), closed: make(chan struct{})}
	i.transform = func(o any) (any, error) { return o, nil }
	i.config = toolscache.Config{Queue: i, ListerWatcher: lw, ObjectType: example}
	return i
}

// SetTransform implements toolscache.SharedInformer. Call it before Run.
func (i *informer) SetTransform(f toolscache.TransformFunc) error {
	if f != nil {
		i.transform = f
	}
	return nil
}

// SetWatchErrorHandlerWithContext implements toolscache.SharedInformer. Call it before Run.
func (i *informer) SetWatchErrorHandlerWithContext(f toolscache.WatchErrorHandlerWithContext) error {
	i.config.WatchErrorHandlerWithContext = f
	return nil
}

// AddEventHandler implements toolscache.SharedInformer. The registration is the informer, because the handler knows all objects of the store
// when the method returns.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, o := range i.GetIndexer().List() {
		h.OnAdd(o, true)
	}
	i.handlers = append(i.handlers, h)
	return i, nil
}

// RunWithContext implements toolscache.SharedInformer. Call it once.
func (i *informer) RunWithContext(ctx context.Context) { toolscache.New(&i.config).RunWithContext(ctx) }

// HasSynced implements toolscache.SharedInformer.
func (i *informer) HasSynced() bool { return toolscache.IsDone(i) }

// HasSyncedChecker implements toolscache.SharedInformer.
func (i *informer) HasSyncedChecker() toolscache.DoneChecker { return i }

// Name implements toolscache.DoneChecker.
func (i *informer) Name() string { return "informer" }

// Done implements toolscache.DoneChecker.
func (i *informer) Done() <-chan struct{} { return i.synced }

// Transformer implements toolscache.TransformingStore.
func (i *informer) Transformer() toolscache.TransformFunc { return i.transform }

// Add implements toolscache.ReflectorStore.
func (i *informer) Add(o any) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, err := i.put(o)
	return err
}

// Update implements toolscache.ReflectorStore.
func (i *informer) Update(o any) error { return i.Add(o) }

// reduced returns the object after the transformation, and its key.
func (i *informer) reduced(o any) (any, string, error) {
	o, err := i.transform(o)
	if err != nil {
		return nil, "", err
	}
	key, err := toolscache.MetaNamespaceKeyFunc(o)
	return o, key, err
}

// put stores an object, calls the handlers unless it is unchanged, and returns its key.
func (i *informer) put(o any) (string, error) {
	o, key, err := i.reduced(o)
	if err != nil {
		return "", err
	}
	before, existed, err := i.GetIndexer().GetByKey(key)
	if err == nil {
		err = i.GetIndexer().Update(o)
	}
	for _, h := range i.handlers {
		switch {
		case err != nil:
		case !existed:
			h.OnAdd(o, !i.HasSynced())
		case versionsDiffer(before, o):
			h.OnUpdate(before, o)
		}
	}
	return key, err
}

// versionsDiffer returns whether the versions of an object differ.
func versionsDiffer(a, b any) bool {
	was, err := meta.Accessor(a)
	if err != nil {
		return true
	}
	is, err := meta.Accessor(b)
	return err != nil || was.GetResourceVersion() != is.GetResourceVersion()
}

// Delete implements toolscache.ReflectorStore.
func (i *informer) Delete(o any) error {
	o, key, err := i.reduced(o)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if _, existed, err := i.GetIndexer().GetByKey(key); err != nil || !existed {
		return err
	}
	return i.drop(o)
}

// drop removes an object from the store, and calls the handlers.
func (i *informer) drop(o any) error {
	if err := i.GetIndexer().Delete(o); err != nil {
		return err
	}
	for _, h := range i.handlers {
		h.OnDelete(o)
	}
	return nil
}

// Replace implements toolscache.ReflectorStore.
func (i *informer) Replace(list []any, _ string) error {
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
	for _, key := range i.GetIndexer().ListKeys() {
		if listed.Has(key) {
			continue
		}
		last, _, err := i.GetIndexer().GetByKey(key)
		if err == nil {
			err = i.drop(toolscache.DeletedFinalStateUnknown{Key: key, Obj: last})
		}
		if err != nil {
			return err
		}
	}
	if !i.HasSynced() {
		close(i.synced)
	}
	return nil
}

// Resync implements toolscache.ReflectorStore.
func (i *informer) Resync() error { return nil }

// Pop implements toolscache.Queue. It has nothing to do, because Add, Update, Delete and Replace have done it.
func (i *informer) Pop(toolscache.PopProcessFunc) (any, error) {
	<-i.closed
	return nil, toolscache.ErrFIFOClosed
}

// Close implements toolscache.Queue.
func (i *informer) Close() { close(i.closed) }
