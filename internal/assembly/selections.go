// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
)

// selectionLingers is how long a selection is kept that no policy uses: the next generation of one may need it again. It is longer than the
// time between two checks of a generation that cannot be in force yet.
const selectionLingers = 3 * time.Minute

// selections contains the cache of each kind and of each framework.Selection, by name. Its methods of client.Reader are safe
// for concurrent use.
type selections struct {
	clock clock.PassiveClock
	mu    sync.RWMutex
	all   map[string]*selection
}

// selection is a framework.Selection that is watched.
type selection struct {
	*Informer
	// user is the part of the program that needs a selection of a registration, such as a plugin. It is empty for a selection that Select has
	// added. Only those end.
	user string
	// stop ends the watch.
	stop context.CancelFunc
	// unused is when Keep first did not name the selection, or zero.
	unused time.Time

	mu sync.Mutex
	// rejected is the error of the last watch if the API server rejected it, because a permission is missing or the kind is gone, or if it fails
	// again and again. The watch is tried again until it succeeds.
	rejected error
}

// reject sets the result of the last watch.
func (s *selection) reject(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.user != "" {
		what, lacks, remedy := "A watch fails", "the API server serves no objects", "check the API server and etcd"
		switch {
		case apierrors.IsForbidden(err):
			what, lacks, remedy = "A permission is missing", "the service account lacks a permission", "apply its role of this version, or switch it off"
		case apierrors.IsNotFound(err):
			what, lacks, remedy = "A kind is missing", "the API server does not serve a kind", "enable it in the API server, or restart Prebind"
		}
		err = fmt.Errorf("%s: %s: %w; %s", s.user, lacks, err, remedy)
		if s.rejected == nil {
			klog.ErrorS(err, what)
		}
	}
	s.rejected = err
}

// denied returns the error while the API server rejects the watch.
func (s *selection) denied() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rejected
}

// List implements client.Reader. It lists the objects of a kind, or of a selection with the value that the options select, at most as many as
// their limit if it is positive. It does not copy what the objects refer to.
func (s *selections) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	by, ok := framework.SelectedBy(opts)
	if ok { // Its objects need not have the labels any more, because of its Transform.
		o = &client.ListOptions{Limit: o.Limit}
	} else {
		by.Name = framework.KindOf(into)
	}
	from, err := s.named(by.Name)
	if err != nil {
		return err
	}
	if !sameItems(into, from.want.Example) {
		return fmt.Errorf("%q is watched as %s, and listed as %T of %s", by.Name, describe(from.want.Example), into, into.GetObjectKind().GroupVersionKind())
	}
	return listFrom(from.store, into, by, o)
}

// sameItems returns whether the list has objects of the Go type of the example, and the same version if they are unstructured.
func sameItems(list client.ObjectList, example client.Object) bool {
	items, err := meta.GetItemsPtr(list)
	if err != nil || reflect.TypeOf(items).Elem().Elem() != reflect.TypeOf(example).Elem() {
		return false
	}
	version := versionOf(example)
	return version.Empty() || list.GetObjectKind().GroupVersionKind() == version.GroupVersion().WithKind(version.Kind+"List")
}

// Get implements client.Reader. It reads the object of a kind, or of the selection that is an option. It does not find a pod that is too large
// for the cache. It does not copy what the object refers to.
func (s *selections) Get(_ context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	name := framework.KindOf(into)
	for _, o := range opts {
		if from, ok := o.(framework.Selection); ok {
			name = from.Name
		}
	}
	from, err := s.named(name)
	if err != nil {
		return err
	}
	if !sameKind(into, from.want.Example) {
		return fmt.Errorf("%q is watched as %s, and read as %s", name, describe(from.want.Example), describe(into))
	}
	found, exists, err := from.store.GetByKey(toolscache.ObjectName(key).String())
	if err == nil && !exists { // Like the API server, ignore the namespace of a cluster-scoped object.
		found, exists, err = from.store.GetByKey(key.Name)
	}
	if err != nil {
		return fmt.Errorf("selection %q: %w", name, err)
	}
	if !exists || name == podKind && found.(*corev1.Pod).UID == "" { //nolint:forcetypeassert,errcheck // Only pods have this name.
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
	case !found.HasSynced():
		return nil, fmt.Errorf("not all objects of %q have been read yet", name)
	}
	return found, nil
}

// listFrom lists the objects of the store with the value that the options select, at most as many as their limit if it is positive.
func listFrom(store toolscache.Indexer, into client.ObjectList, by framework.Selected, o *client.ListOptions) error {
	if o.FieldSelector != nil {
		return fmt.Errorf("the cache of %q has no index of the fields %s: use a Selection with a Value", by.Name, o.FieldSelector)
	}
	var bucket []any
	var err error
	switch {
	case by.Selection.Value != nil:
		bucket, err = store.ByIndex(bucketIndex, bucketOf(by.Value))
	case o.Namespace != "":
		bucket, err = store.ByIndex(toolscache.NamespaceIndex, o.Namespace)
	default:
		bucket = store.List()
	}
	if err != nil {
		return fmt.Errorf("selection %q: %w", by.Name, err)
	}
	capacity := len(bucket)
	if o.Limit > 0 {
		capacity = min(capacity, int(o.Limit))
	}
	items := make([]runtime.Object, 0, capacity)
	for _, found := range bucket {
		if o.Limit > 0 && len(items) == int(o.Limit) {
			break
		}
		object, ok := found.(client.Object)
		if ok && by.ValueOf(object) == by.Value && (o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(object.GetLabels()))) {
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

// find returns the selection, which is started if it is new, for its first user.
func (a *Assembly) find(ctx context.Context, want framework.Selection, user string) (*selection, error) {
	if err := want.Check(); err != nil {
		return nil, err
	}
	found := a.selections.use(want.Name, nil)
	if found == nil {
		started := &selection{user: user}
		var err error
		if started.Informer, err = a.source.Informer(ctx, want, started.reject); err != nil {
			return nil, err
		}
		found = a.selections.use(want.Name, func() *selection {
			started.AddEventHandler(a.wakeBy(want))
			running, stop := context.WithCancel(a.running)
			started.stop = stop
			go started.Run(running)
			return started
		})
	}
	if !sameKind(found.want.Example, want.Example) {
		return nil, fmt.Errorf("%q is watched as %s, and as %s", want.Name, describe(found.want.Example), describe(want.Example))
	}
	return found, nil
}

// use returns the selection. If there is none, it returns the result of start, or nil without start.
func (s *selections) use(name string, start func() *selection) *selection {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[name] == nil && start != nil {
		s.all[name] = start()
	}
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

// await waits until the selection has all objects, or until the API server rejects its watch. One that has never had all objects then ends,
// and one whose kind is gone, which can be created again with another scope or plural.
func (s *selections) await(ctx context.Context, want framework.Selection, found *selection) error {
	toolscache.WaitForCacheSync(ctx.Done(), func() bool { return found.denied() != nil || found.HasSynced() })
	s.mu.Lock()
	defer s.mu.Unlock()
	err := found.denied()
	switch {
	case err != nil:
		if found.user == "" && (!found.HasSynced() || apierrors.IsNotFound(err)) { // The next call watches again at once, without the backoff of this watch.
			s.end(want.Name, found)
		}
		return fmt.Errorf("selection %s: %w", want.Name, err)
	case !found.HasSynced():
		return fmt.Errorf("selection %s: the watch of %s objects did not begin in time", want.Name, framework.KindOf(want.Example))
	}
	klog.V(2).InfoS("Watching a selection", "selection", want.Name)
	return nil
}

// keep ends the selections that Select has added for the plugin and that were not named for a time.
func (s *selections) keep(plugin string, names sets.Set[string]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	for name, found := range s.all {
		switch {
		case found.user != "", !selectedBy(plugin, name):
		case names.Has(name):
			found.unused = time.Time{}
		case found.unused.IsZero():
			found.unused = now
		case now.Sub(found.unused) >= selectionLingers:
			s.end(name, found)
		}
	}
}

// selectedBy returns whether the plugin may add a selection with the name.
func selectedBy(plugin, name string) bool { return strings.HasPrefix(name, plugin+"/") }

// selects is framework.Handle.Select of the plugin.
func (a *Assembly) selects(ctx context.Context, plugin string, want framework.Selection) error {
	if !selectedBy(plugin, want.Name) {
		return fmt.Errorf("selection %q: Name must begin with %s/", want.Name, plugin)
	}
	found, err := a.find(ctx, want, "")
	if err != nil {
		return err
	}
	return a.selections.await(ctx, want, found)
}

// denied returns the first error while the API server rejects watches of registrations. A plugin handles those of its Select itself.
func (s *selections) denied() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(s.all)) {
		if found := s.all[name]; found.user != "" && found.denied() != nil {
			return found.denied()
		}
	}
	return nil
}

// useRegistered starts a selection of a registration. Changes reports its changes, and readiness waits for its objects.
func (a *Assembly) useRegistered(want framework.Selection, user string) error {
	found, err := a.find(a.running, want, user)
	if err != nil {
		return err
	}
	if found.user == "" {
		return fmt.Errorf("selection %s: New must not call Select with a selection of the registration", want.Name)
	}
	if want.Handler != nil {
		found.AddEventHandler(want.Handler)
	}
	a.o.WaitFor(want.Name, found.HasSynced)
	a.synced = append(a.synced, found.HasSynced)
	return nil
}

// wakeBy returns a handler that reports each change of an object with its name, and with its value before and after
// the change.
func (a *Assembly) wakeBy(s framework.Selection) toolscache.ResourceEventHandler {
	changed := func(o any) {
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
