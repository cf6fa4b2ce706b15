// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
)

// selectionLingers is the time for which an unused selection is kept, because a call that began
// earlier may still read it, and because the plugin may be switched on again.
const selectionLingers = time.Minute

// selections contains the cache of each framework.Selection, by name. Its reader methods are safe
// for concurrent use.
type selections struct {
	clock clock.WithDelayedExecution
	mu    sync.RWMutex
	all   map[string]*selection
}

// selection is the cache of one framework.Selection. It is a manager.Runnable.
type selection struct {
	cache.Cache
	// store contains the objects. Only its methods for reading may be called.
	store toolscache.Indexer
	// stop ends Start.
	stop chan struct{}
	// lingering is set while no plugin uses the selection.
	lingering clock.Timer
}

// Start implements manager.Runnable.
func (s *selection) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return s.Cache.Start(ctx)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*selection) NeedLeaderElection() bool { return false }

// List lists the objects of the selection with the value. It reads the index itself: the reader of the
// cache copies all objects of the bucket first.
func (s *selections) List(into client.ObjectList, by framework.Selected) error {
	s.mu.RLock()
	found := s.all[by.Name]
	s.mu.RUnlock()
	if found == nil {
		return fmt.Errorf("selection %q is not among those of the plugin's registration", by.Name)
	}
	return listFrom(found.store, into, by)
}

// listFrom lists the objects of the store with the value.
func listFrom(store toolscache.Indexer, into client.ObjectList, by framework.Selected) error {
	bucket, err := store.ByIndex(bucketIndex, bucketOf(by.Value))
	if err != nil {
		return fmt.Errorf("selection %q: %w", by.Name, err)
	}
	items := make([]runtime.Object, 0, len(bucket))
	for _, o := range bucket {
		if object := compact.Unpack(o); object != nil && by.Selection.Value(object) == by.Value {
			items = append(items, object)
		}
	}
	return meta.SetList(into, items)
}

// bucketIndex is the index of a selection.
const bucketIndex = "bucket"

// buckets is the number of values of the index of a selection. An index entry for each value, such as
// for each node, needs more memory than the object.
const buckets = 1024

// bucketSeed prevents tenants from choosing values that share a bucket.
var bucketSeed = maphash.MakeSeed()

// bucketOf returns the value of the index for objects whose field has the value.
func bucketOf(value string) string {
	return strconv.FormatUint(maphash.String(bucketSeed, value)%buckets, 10)
}

// use starts the selection if it is new. It must not be called concurrently.
func (s *selections) use(ctx context.Context, a *Assembly, want framework.Selection) error {
	if err := want.Check(); err != nil {
		return err
	}
	if s.reuse(want.Name) {
		return nil
	}
	started, err := a.startSelection(ctx, want)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[want.Name] = started
	return nil
}

// reuse returns whether the selection exists, and keeps it.
func (s *selections) reuse(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.all[name]
	if found == nil || found.lingering != nil && !found.lingering.Stop() {
		return false
	}
	found.lingering = nil
	return true
}

// keep ends the selections that are not in use, after a time.
func (s *selections) keep(used sets.Set[string]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, found := range s.all {
		if used.Has(name) || found.lingering != nil {
			continue
		}
		found.lingering = s.clock.AfterFunc(selectionLingers, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			close(found.stop)
			if s.all[name] == found {
				delete(s.all, name)
			}
		})
	}
}

// SelectionCache returns a cache that contains the selection, its informer, and the store with its
// index. It uses the client, the scheme and the mapper of the options.
func SelectionCache(ctx context.Context, config *rest.Config, o cache.Options, want framework.Selection) (cache.Cache, cache.Informer, toolscache.Indexer, error) {
	options := commonCacheOptions()
	options.HTTPClient, options.Scheme, options.Mapper = o.HTTPClient, o.Scheme, o.Mapper
	by := cache.ByObject{Label: want.Labels, Field: want.Fields, Transform: want.Transform}
	if want.Namespace != "" {
		by.Namespaces = map[string]cache.Config{want.Namespace: {}}
	}
	options.ByObject = map[client.Object]cache.ByObject{want.Example: by}
	var store toolscache.Indexer
	options.NewInformer = func(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		indexers[bucketIndex] = func(o any) ([]string, error) {
			object := compact.Unpack(o)
			if object == nil {
				return nil, nil
			}
			return []string{bucketOf(want.Value(object))}, nil
		}
		informer := toolscache.NewSharedIndexInformer(lw, example, resync, indexers)
		store = informer.GetIndexer()
		return informer
	}
	c, err := cache.New(config, options)
	if err != nil {
		return nil, nil, nil, err
	}
	informer, err := c.GetInformer(ctx, want.Example, cache.BlockUntilSynced(false))
	return c, informer, store, err
}

// startSelection returns the selection, with all objects if the manager runs.
func (a *Assembly) startSelection(ctx context.Context, want framework.Selection) (*selection, error) {
	mgr := a.o.Manager
	options := cache.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()}
	c, informer, store, err := SelectionCache(ctx, mgr.GetConfig(), options, want)
	if err != nil {
		return nil, fmt.Errorf("selection %s: %w", want.Name, err)
	}
	s := &selection{Cache: c, store: store, stop: make(chan struct{})}
	synced := []toolscache.InformerSynced{informer.HasSynced}
	for _, handler := range []toolscache.ResourceEventHandler{a.wakeBy(want), want.Handler} {
		if handler == nil {
			continue
		}
		added, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("selection %s: %w", want.Name, err)
		}
		synced = append(synced, added.HasSynced)
	}
	if err := mgr.Add(s); err != nil {
		return nil, fmt.Errorf("selection %s: %w", want.Name, err)
	}
	return s, a.awaitSelection(ctx, want, s, synced)
}

// awaitSelection waits until the selection has all objects. If the manager does not run yet,
// readiness waits for it instead.
func (a *Assembly) awaitSelection(ctx context.Context, want framework.Selection, s *selection, synced []toolscache.InformerSynced) error {
	select {
	case <-a.o.Manager.Elected():
	default:
		for _, f := range synced {
			a.o.WaitFor(want.Name, f)
		}
		return nil
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		close(s.stop)
		return fmt.Errorf("selection %s: the watch of %s objects did not begin in time", want.Name, framework.KindOf(want.Example))
	}
	klog.V(2).InfoS("Watching a selection", "selection", want.Name)
	return nil
}

// wakeBy returns a handler that reports each change of an object with its value, before and after
// the change.
func (a *Assembly) wakeBy(s framework.Selection) toolscache.ResourceEventHandler {
	changed := func(o any) {
		if object := compact.Unpack(o); object != nil {
			a.Changes.Changed(s.Changed(s.Value(object)))
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(before, after any) { changed(before); changed(after) },
		DeleteFunc: changed,
	}
}
