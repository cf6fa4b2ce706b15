// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
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
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/notify"
)

// selectionLingers is the time for which an unused selection is kept, because a call that began
// earlier may still read it.
const selectionLingers = time.Minute

// selections contains the cache of each framework.Selection, by name. Its reader methods are safe
// for concurrent use.
type selections struct {
	clock clock.WithDelayedExecution
	// starting is held while a selection is started.
	starting sync.Mutex
	mu       sync.RWMutex
	all      map[string]*selection
	checks   checks
}

// selection is the cache of one framework.Selection. It is a manager.Runnable.
type selection struct {
	cache.Cache
	// store contains the objects. Only its methods for reading may be called.
	store toolscache.Indexer
	// synced return true when the store and the handlers have all objects.
	synced []toolscache.InformerSynced
	// forbidden contains the watch while the API server forbids it.
	forbidden *forbidden
	// stop ends Start.
	stop chan struct{}
	// by added the selection with Select. It is nil for a selection of a registration, which never ends.
	by *selector
	// ready is set when the selection may be read.
	ready bool
	// lingering is set while the selection is not used.
	lingering clock.Timer
}

// selector implements framework.Selector for a plugin.
type selector struct {
	assembly *Assembly
	plugin   string
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

// List lists the objects of the selection with the value, at most as many as the limit if it is positive. It reads the index itself: the reader of the
// cache copies all objects of the bucket first.
func (s *selections) List(into client.ObjectList, by framework.Selected, limit int) error {
	s.mu.RLock()
	found := s.all[by.Name]
	known := found != nil && found.ready
	s.mu.RUnlock()
	if !known {
		return fmt.Errorf("selection %q is not among those of the plugin's registration, and Select has not added it", by.Name)
	}
	return listFrom(found.store, into, by, limit)
}

// listFrom lists the objects of the store with the value, at most as many as the limit if it is positive.
func listFrom(store toolscache.Indexer, into client.ObjectList, by framework.Selected, limit int) error {
	bucket, err := candidates(store, by)
	if err != nil {
		return fmt.Errorf("selection %q: %w", by.Name, err)
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
		if object := compact.Unpack(o); object != nil && by.ValueOf(object) == by.Value {
			items = append(items, object)
		}
	}
	return meta.SetList(into, items)
}

// candidates returns the objects that may have the value.
func candidates(store toolscache.Indexer, by framework.Selected) ([]any, error) {
	if by.Indexed() {
		return store.ByIndex(bucketIndex, bucketOf(by.Value))
	}
	if by.Field != framework.ByName {
		return store.List(), nil
	}
	found, exists, err := store.GetByKey(by.Value)
	if !exists {
		return nil, err
	}
	return []any{found}, err
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

// find returns the selection, which is started if it is new. by is nil for a selection of a registration.
func (s *selections) find(ctx context.Context, a *Assembly, want framework.Selection, by *selector) (*selection, error) {
	s.starting.Lock()
	defer s.starting.Unlock()
	if found := s.reuse(want.Name); found != nil {
		return found, nil
	}
	denied := a.o.Manager.forbidden
	if by != nil {
		denied = &forbidden{}
	}
	started, err := a.startSelection(ctx, want, denied)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	started.by = by
	s.all[want.Name] = started
	return started, nil
}

// reuse returns the selection, which no longer lingers, or nil if there is none or it is ending.
func (s *selections) reuse(name string) *selection {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.all[name]
	if found == nil || !found.use() {
		return nil
	}
	return found
}

// use returns whether the selection no longer lingers. It must be called with mu held.
func (s *selection) use() bool {
	if s.lingering != nil && !s.lingering.Stop() {
		return false
	}
	s.lingering = nil
	return true
}

// await waits until the selection has all objects or is forbidden. One that has never had them may end.
func (s *selections) await(ctx context.Context, want framework.Selection, found *selection) error {
	denied := func() bool { return found.forbidden.err() != nil }
	synced := func() bool {
		return !slices.ContainsFunc(found.synced, func(f toolscache.InformerSynced) bool { return !f() })
	}
	toolscache.WaitForCacheSync(ctx.Done(), func() bool { return denied() || synced() })
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := found.forbidden.err(); err != nil {
		if !found.ready && s.all[want.Name] == found && found.use() {
			// The next call watches again at once, without the backoff of this watch.
			close(found.stop)
			delete(s.all, want.Name)
		}
		return fmt.Errorf("selection %s: %w", want.Name, err)
	}
	if synced() && found.use() {
		klog.V(2).InfoS("Watching a selection", "selection", want.Name)
		found.ready = true
		return nil
	}
	if !found.ready {
		s.linger(want.Name, found)
	}
	return fmt.Errorf("selection %s: the watch of %s objects did not begin in time", want.Name, framework.KindOf(want.Example))
}

// keep ends the selections that the selector has added and that are not named.
func (s *selections) keep(by *selector, names sets.Set[string]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, found := range s.all {
		if found.by == by && !names.Has(name) {
			s.linger(name, found)
		}
	}
}

// linger ends the selection after a time, unless it is used again. It must be called with mu held.
func (s *selections) linger(name string, found *selection) {
	if found.lingering != nil {
		return
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

// Select implements framework.Selector.
func (u *selector) Select(ctx context.Context, want framework.Selection) error {
	if err := want.Check(); err != nil {
		return err
	}
	if !strings.HasPrefix(want.Name, u.plugin+"/") {
		return fmt.Errorf("selection %q: Name must begin with %s/", want.Name, u.plugin)
	}
	all := u.assembly.o.Manager.selections
	if err := all.checks.serves(ctx, u.assembly, want.Example); err != nil {
		return fmt.Errorf("selection %s: %w", want.Name, err)
	}
	found, err := all.find(ctx, u.assembly, want, u)
	if err != nil {
		return err
	}
	return all.await(ctx, want, found)
}

// Keep implements framework.Selector.
func (u *selector) Keep(names sets.Set[string]) { u.assembly.o.Manager.selections.keep(u, names) }

// checkLasts is the time for which a successful check of a kind is not repeated, so that many policies do not
// multiply the requests.
const checkLasts = 10 * time.Second

// checks shares the checks of kinds in progress, and their last successes. The zero value is ready to use.
type checks struct {
	running singleflight.Group
	// last contains the time of the last success by kind.
	last sync.Map
}

// serves returns an error if the API server does not serve the kind of the example any more.
func (c *checks) serves(ctx context.Context, a *Assembly, example client.Object) error {
	kind, err := apiutil.GVKForObject(example, a.o.Manager.GetScheme())
	if err != nil {
		return err
	}
	now := a.o.Manager.selections.clock
	last, _ := c.last.Load(kind)
	if at, ok := last.(time.Time); ok && now.Since(at) < checkLasts {
		return nil
	}
	result := c.running.DoChan(kind.String(), func() (any, error) {
		err := a.serves(kind)
		if err == nil {
			c.last.Store(kind, now.Now())
		}
		return nil, err
	})
	select {
	case r := <-result:
		return r.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serves returns an error if the API server does not serve the kind. The mapper keeps kinds that are gone, so discovery is
// asked as well. No answer of discovery counts as served.
func (a *Assembly) serves(kind schema.GroupVersionKind) error {
	if _, err := a.o.Manager.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version); err != nil {
		return err
	}
	version := kind.GroupVersion().String()
	served, err := a.o.Manager.discovery.ServerResourcesForGroupVersion(version)
	isKind := func(r metav1.APIResource) bool { return r.Kind == kind.Kind && !strings.Contains(r.Name, "/") }
	if apierrors.IsNotFound(err) || err == nil && !slices.ContainsFunc(served.APIResources, isKind) {
		return &meta.NoKindMatchError{GroupKind: kind.GroupKind(), SearchedVersions: []string{kind.Version}}
	}
	return nil
}

// SelectionCache returns a cache that contains the selection, its informer, and the store with its
// index. It uses the client, the scheme, the mapper and the handler of watch errors of the options.
func SelectionCache(ctx context.Context, config *rest.Config, o cache.Options, want framework.Selection) (cache.Cache, cache.Informer, toolscache.Indexer, error) {
	options := commonCacheOptions()
	options.HTTPClient, options.Scheme, options.Mapper = o.HTTPClient, o.Scheme, o.Mapper
	options.DefaultWatchErrorHandler = o.DefaultWatchErrorHandler
	by := cache.ByObject{Label: want.Labels, Field: want.Fields, Transform: want.Transform}
	if want.Namespace != "" {
		by.Namespaces = map[string]cache.Config{want.Namespace: {}}
	}
	options.ByObject = map[client.Object]cache.ByObject{want.Example: by}
	var store toolscache.Indexer
	options.NewInformer = func(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		if want.Indexed() {
			indexers[bucketIndex] = func(o any) ([]string, error) {
				object := compact.Unpack(o)
				if object == nil {
					return nil, nil
				}
				return []string{bucketOf(want.Value(object))}, nil
			}
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

// startSelection starts the selection.
func (a *Assembly) startSelection(ctx context.Context, want framework.Selection, denied *forbidden) (*selection, error) {
	mgr := a.o.Manager
	options := cache.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DefaultWatchErrorHandler: denied.handle}
	c, informer, store, err := SelectionCache(ctx, mgr.GetConfig(), options, want)
	if err != nil {
		return nil, fmt.Errorf("selection %s: %w", want.Name, err)
	}
	s := &selection{Cache: c, store: store, synced: []toolscache.InformerSynced{informer.HasSynced}, forbidden: denied, stop: make(chan struct{})}
	for _, handler := range []toolscache.ResourceEventHandler{a.wakeBy(want), want.Handler} {
		if handler == nil {
			continue
		}
		added, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("selection %s: %w", want.Name, err)
		}
		s.synced = append(s.synced, added.HasSynced)
	}
	if err := mgr.Add(s); err != nil {
		return nil, fmt.Errorf("selection %s: %w", want.Name, err)
	}
	return s, nil
}

// useRegistered starts a selection of a registration. Readiness waits for its objects.
func (a *Assembly) useRegistered(ctx context.Context, want framework.Selection, by user) error {
	if err := want.Check(); err != nil {
		return err
	}
	if err := a.usedBy(want.Example, by); err != nil {
		return err
	}
	found, err := a.o.Manager.selections.find(ctx, a, want, nil)
	if err != nil {
		return err
	}
	found.ready = true
	for _, f := range found.synced {
		a.o.WaitFor(want.Name, f)
	}
	return nil
}

// wakeBy returns a handler that reports each change of an object with its value, before and after
// the change.
func (a *Assembly) wakeBy(s framework.Selection) toolscache.ResourceEventHandler {
	changed := func(o any) {
		if object := compact.Unpack(o); object != nil {
			a.Changes.Changed(notify.Selected(s, s.ValueOf(object)))
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(before, after any) { changed(before); changed(after) },
		DeleteFunc: changed,
	}
}
