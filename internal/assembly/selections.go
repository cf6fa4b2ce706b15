// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"fmt"
	"hash/maphash"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
)

// selectionLingers is how long a selection is kept that no policy uses: the next generation of one may need it again.
const selectionLingers = time.Minute

// selections contains the cache of each kind and of each framework.Selection, by name. Its reader methods are safe
// for concurrent use.
type selections struct {
	clock clock.PassiveClock
	// starting is held while a selection is started.
	starting sync.Mutex
	mu       sync.RWMutex
	all      map[string]*selection
}

// selection is the cache of one framework.Selection.
type selection struct {
	// example has the type of the objects.
	example client.Object
	cache   cache.Cache
	// informer has the store with the objects. Only its methods for reading may be called.
	informer toolscache.SharedIndexInformer
	// denied contains the watch while the API server rejects it.
	denied *denied
	// stop ends the watch.
	stop context.CancelFunc
	// by added the selection with Select. It is nil for a selection of a registration, which never ends.
	by *selector
	// unused is when Keep first did not name the selection, or zero.
	unused time.Time
}

// selector adds and removes the selections of a plugin.
type selector struct {
	assembly *Assembly
	plugin   string
}

// List lists the objects of the selection with the value, at most as many as the limit if it is positive. It reads the index itself: the reader of the
// cache copies all objects of the bucket first.
func (s *selections) List(into client.ObjectList, by framework.Selected, limit int) error {
	from, err := s.named(by.Name)
	if err != nil {
		return err
	}
	return listFrom(from.informer.GetIndexer(), into, by, limit)
}

// Get reads the object from the selection with the name. It does not copy what the object refers to.
func (s *selections) Get(key client.ObjectKey, into client.Object, name string) error {
	from, err := s.named(name)
	if err != nil {
		return err
	}
	if !sameKind(into, from.example) {
		return fmt.Errorf("%q is watched as %s, and read as %s", name, describe(from.example), describe(into))
	}
	store := from.informer.GetIndexer()
	found, exists, err := store.GetByKey(toolscache.ObjectName(key).String())
	if err == nil && !exists { // Like the API server, ignore the namespace of a cluster-scoped object.
		found, exists, err = store.GetByKey(key.Name)
	}
	if err != nil {
		return fmt.Errorf("selection %q: %w", name, err)
	}
	if !exists {
		return apierrors.NewNotFound(schema.GroupResource{Resource: framework.KindOf(into)}, key.Name)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(found).Elem())
	return nil
}

// sameKind returns whether both have the same Go type, and the same version if they are unstructured: kinds and their names have no
// versions.
func sameKind(a, b client.Object) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && versionOf(a) == versionOf(b)
}

// versionOf returns the group, version and kind of an object whose Go type does not determine them.
func versionOf(object client.Object) schema.GroupVersionKind {
	switch object.(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		return object.GetObjectKind().GroupVersionKind()
	default:
		return schema.GroupVersionKind{}
	}
}

// describe returns the Go type of the object, with its version if it is unstructured.
func describe(object client.Object) string {
	if version := versionOf(object); !version.Empty() {
		return fmt.Sprintf("%T of %s", object, version)
	}
	return fmt.Sprintf("%T", object)
}

// named returns the selection with the name. An error is better than an object that seems not to exist because it was not read yet.
func (s *selections) named(name string) (*selection, error) {
	s.mu.RLock()
	found := s.all[name]
	s.mu.RUnlock()
	switch {
	case found == nil:
		return nil, fmt.Errorf("%q is not among the watches and selections of the plugin's registration, and Select has not added it", name)
	case !found.ready():
		return nil, fmt.Errorf("not all objects of %q have been read yet", name)
	}
	return found, nil
}

// ready returns whether the selection has had all objects, and its handlers know them, so it may be read.
func (s *selection) ready() bool { return s.informer.HasSynced() }

// listFrom lists the objects of the store with the value, at most as many as the limit if it is positive.
func listFrom(store toolscache.Indexer, into client.ObjectList, by framework.Selected, limit int) error {
	var bucket []any
	if by.Selection.Value == nil {
		bucket = store.List()
	} else {
		var err error
		if bucket, err = store.ByIndex(bucketIndex, bucketOf(by.Value)); err != nil {
			return fmt.Errorf("selection %q: %w", by.Name, err)
		}
	}
	capacity := len(bucket)
	if limit > 0 {
		capacity = min(capacity, limit)
	}
	items := make([]runtime.Object, 0, capacity)
	for _, o := range bucket {
		if limit > 0 && len(items) == limit {
			break
		}
		if object, ok := o.(client.Object); ok && by.ValueOf(object) == by.Value {
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

// bucketOf returns the value of the index for objects with the value.
func bucketOf(value string) string {
	return strconv.FormatUint(maphash.String(bucketSeed, value)%buckets, 10)
}

// find returns the selection, which is started if it is new. by is nil for a selection of a registration.
func (s *selections) find(ctx context.Context, a *Assembly, want framework.Selection, by *selector) (*selection, error) {
	s.starting.Lock()
	defer s.starting.Unlock()
	if found := s.use(want.Name); found != nil {
		if !sameKind(found.example, want.Example) {
			return nil, fmt.Errorf("%q is watched as %s, and as %s", want.Name, describe(found.example), describe(want.Example))
		}
		return found, nil
	}
	rejected := a.denied
	if by != nil {
		rejected = &denied{}
	}
	started, err := a.startSelection(ctx, want, rejected)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	started.by = by
	s.all[want.Name] = started
	return started, nil
}

// use returns the selection, or nil if there is none.
func (s *selections) use(name string) *selection {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.all[name]
	if found != nil {
		found.unused = time.Time{}
	}
	return found
}

// end ends the selection. It must be called with mu held.
func (s *selections) end(name string, found *selection) {
	if s.all[name] == found {
		found.stop()
		delete(s.all, name)
	}
}

// await waits until the selection has all objects, or until the API server rejects its watch. One that has never had all objects then ends.
func (s *selections) await(ctx context.Context, want framework.Selection, found *selection) error {
	rejected := func() bool { return found.denied.err() != nil }
	toolscache.WaitForCacheSync(ctx.Done(), func() bool { return rejected() || found.ready() })
	s.mu.Lock()
	defer s.mu.Unlock()
	err := found.denied.err()
	switch {
	case err != nil:
		if !found.ready() { // The next call watches again at once, without the backoff of this watch.
			s.end(want.Name, found)
		}
		return fmt.Errorf("selection %s: %w", want.Name, err)
	case !found.ready():
		return fmt.Errorf("selection %s: the watch of %s objects did not begin in time", want.Name, framework.KindOf(want.Example))
	}
	klog.V(2).InfoS("Watching a selection", "selection", want.Name)
	return nil
}

// keep ends the selections that the selector has added and that were not named for a time.
func (s *selections) keep(by *selector, names sets.Set[string]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	for name, found := range s.all {
		switch {
		case found.by != by:
		case names.Has(name):
			found.unused = time.Time{}
		case found.unused.IsZero():
			found.unused = now
		case now.Sub(found.unused) >= selectionLingers:
			s.end(name, found)
		}
	}
}

// Select is framework.Handle.Select.
func (u *selector) Select(ctx context.Context, want framework.Selection) error {
	if err := want.Check(); err != nil {
		return err
	}
	if !strings.HasPrefix(want.Name, u.plugin+"/") {
		return fmt.Errorf("selection %q: Name must begin with %s/", want.Name, u.plugin)
	}
	all := u.assembly.selections
	found, err := all.find(ctx, u.assembly, want, u)
	if err != nil {
		return err
	}
	return all.await(ctx, want, found)
}

// Keep is framework.Handle.Keep.
func (u *selector) Keep(names sets.Set[string]) { u.assembly.selections.keep(u, names) }

// SelectionCache returns the cache of the selection, with its informer.
func SelectionCache(ctx context.Context, config *rest.Config, options cache.Options, want framework.Selection) (c cache.Cache, own toolscache.SharedIndexInformer, err error) {
	by := cache.ByObject{Label: want.Labels, Field: want.Fields, Transform: want.Transform}
	if want.Namespace != "" {
		by.Namespaces = map[string]cache.Config{want.Namespace: {}}
	}
	options.ByObject = map[client.Object]cache.ByObject{want.Example: by}
	var pods toolscache.ListerWatcher
	if want.Name == podKind {
		if pods, err = listPods(config, options, want.Fields); err != nil {
			return nil, nil, fmt.Errorf("selection %s: %w", want.Name, err)
		}
	}
	options.NewInformer = func(lw toolscache.ListerWatcher, example runtime.Object, _ time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		if want.Value != nil {
			indexers[bucketIndex] = func(o any) ([]string, error) {
				object, ok := o.(client.Object)
				if !ok {
					return nil, nil
				}
				return []string{bucketOf(want.Value(object))}, nil
			}
		}
		if pods != nil {
			lw = pods
		}
		own = newInformer(lw, example, indexers)
		return own
	}
	if c, err = cache.New(config, options); err == nil {
		_, err = c.GetInformer(ctx, want.Example, cache.BlockUntilSynced(false))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("selection %s: %w", want.Name, err)
	}
	return c, own, nil
}

// startSelection starts the selection.
func (a *Assembly) startSelection(ctx context.Context, want framework.Selection, rejected *denied) (*selection, error) {
	c, informer, err := SelectionCache(ctx, a.GetConfig(), a.inherited(rejected), want)
	if err != nil {
		return nil, err
	}
	if _, err := informer.AddEventHandler(a.wakeBy(want)); err != nil {
		return nil, fmt.Errorf("selection %s: %w", want.Name, err)
	}
	running, stop := context.WithCancel(a.running)
	go func() { _ = c.Start(running) }() // Only a second start fails.
	return &selection{
		example: want.Example, cache: c, informer: informer, denied: rejected, stop: stop,
	}, nil
}

// useRegistered starts a selection of a registration. Changes reports its changes, and readiness waits for its objects.
func (a *Assembly) useRegistered(ctx context.Context, want framework.Selection, by string) error {
	if err := want.Check(); err != nil {
		return err
	}
	a.denied.usedBy(want.Example, by)
	found, err := a.selections.find(ctx, a, want, nil)
	if err != nil {
		return err
	}
	if want.Handler != nil {
		if _, err := found.informer.AddEventHandler(want.Handler); err != nil {
			return fmt.Errorf("selection %s: %w", want.Name, err)
		}
	}
	a.o.WaitFor(want.Name, found.ready)
	a.synced = append(a.synced, found.ready)
	return nil
}

// wakeBy returns a handler that reports each change of an object with its name, and with its value before and after
// the change.
func (a *Assembly) wakeBy(s framework.Selection) toolscache.ResourceEventHandler {
	changed := func(o any) {
		if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = last.Obj
		}
		if object, ok := o.(client.Object); ok {
			a.Changes.Changed(notify.Selected(s, s.ValueOf(object)))
			a.Changes.Wake(object)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(before, after any) { changed(before); changed(after) },
		DeleteFunc: changed,
	}
}
