// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fakeapi is an API server in memory, for unit tests of what reads and writes
// objects by controller-runtime's client. It is the only one that tests write by hand;
// where it is not enough, use the real one, see test/cluster.
//
// The Server does these things as the real one does:
//
//   - Every change gives the object a new resourceVersion, unless nothing changes. Create
//     sets a UID. Reads and writes copy objects: clients share no memory with the server.
//
//   - Update and Patch fail with Conflict for another resourceVersion than the present one,
//     where one is sent, and for another UID. Delete fails so for its preconditions.
//
//   - JSON patches, merge patches and strategic merge patches are applied by the library
//     that the real one uses. A JSON patch that cannot be applied is Invalid.
//
//   - The status of a ResourceClaim is written by Status() alone, and the rest never by it.
//     A status is validated like that of the real API server, and managedFields contain the manager of each reservation.
//
//   - Lists are in the order of namespace and name. They select by namespace, by labels,
//     and by fields: those of pods that the real one knows (metadata.name,
//     spec.nodeName, status.phase), spec.pod.uid of BindTasks, and indexes, as a cache has them. They come in pages
//     where a limit is sent.
//
//   - Objects can be listed as PartialObjectMetadata.
//
//   - Delete of an object with finalizers sets its deletionTimestamp. It is removed with the
//     last finalizer.
//
//   - A ConfigMap with more than 1 MiB of data is Invalid.
//
// What it does not do: defaulting, admission, other validation, garbage collection,
// watches, server-side apply.
package fakeapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// firstVersion is above those that most tests give to objects.
const firstVersion = 100

// Server holds the objects. Its methods are safe for concurrent use, but for those that
// set it up: OnChange and PageSize come before everything else.
type Server struct {
	mu      sync.Mutex
	version int
	objects map[string]map[client.ObjectKey]client.Object
	changed []func(o client.Object, deleted bool)
	page    int
	writes  []Call
	reads   int
}

// New returns a server with the objects.
func New(objects ...client.Object) *Server {
	s := &Server{version: firstVersion, objects: map[string]map[client.ObjectKey]client.Object{}}
	for _, o := range objects {
		s.Put(o)
	}
	return s
}

// OnChange has f called after each change, with the object as it is or was. The server is
// not locked then.
func (s *Server) OnChange(f func(o client.Object, deleted bool)) { s.changed = append(s.changed, f) }

// PageSize limits the pages of lists, also where the client asks for longer ones.
func (s *Server) PageSize(n int) { s.page = n }

// Kind is that of an object or of a list, such as Pod or PodList.
func Kind(o runtime.Object) string {
	if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	return reflect.TypeOf(o).Elem().Name()
}

// Put stores the object as another client does who may write everything. It keeps the
// resourceVersion that the object has, if that is another one than the server's; otherwise
// a changed object gets the next one.
func (s *Server) Put(o client.Object) {
	stored := plain(copyOf(o))
	s.mu.Lock()
	was := s.objects[Kind(o)][client.ObjectKeyFromObject(o)]
	stale := was != nil && was.GetResourceVersion() == stored.GetResourceVersion() && !equality.Semantic.DeepEqual(was, stored)
	if stored.GetResourceVersion() == "" || stale {
		s.stamp(stored)
	}
	s.store(stored)
	s.mu.Unlock()
	s.notify(stored, false)
}

// Change changes an object as another client does, by a field manager of that name. It
// does nothing if there is no such object.
func Change[T client.Object](s *Server, o T, manager string, change func(T)) {
	s.mu.Lock()
	found, ok := s.objects[Kind(o)][client.ObjectKeyFromObject(o)].(T)
	if !ok {
		s.mu.Unlock()
		return
	}
	changed, _ := reflect.TypeAssert[T](reflect.ValueOf(found.DeepCopyObject()))
	change(changed)
	if found.GetDeletionTimestamp() != nil && len(found.GetFinalizers()) > 0 && len(changed.GetFinalizers()) == 0 {
		s.mu.Unlock()
		s.Remove(changed)
		return
	}
	noteReservations(found, changed, manager)
	s.stamp(changed)
	s.store(changed)
	s.mu.Unlock()
	s.notify(changed, false)
}

// Remove deletes the object as another client does.
func (s *Server) Remove(o client.Object) {
	s.mu.Lock()
	was := s.objects[Kind(o)][client.ObjectKeyFromObject(o)]
	delete(s.objects[Kind(o)], client.ObjectKeyFromObject(o))
	s.mu.Unlock()
	s.notify(cmp.Or(was, o), true)
}

// Get reads an object without being counted; false if there is none.
func Get[T client.Object](s *Server, o T) (T, bool) {
	found, _ := reflect.TypeAssert[T](reflect.ValueOf(o.DeepCopyObject()))
	if Read(s, found) != nil {
		return o, false
	}
	return found, true
}

// Read reads the object of the same kind, namespace and name into it, without being counted.
func Read(s *Server, into client.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.objects[Kind(into)][client.ObjectKeyFromObject(into)]
	if found == nil {
		return NotFound(Kind(into), into.GetName())
	}
	return assign(found, into)
}

// Cache returns a reader that is not counted.
func (s *Server) Cache() client.Reader { return cache{s} }

type cache struct{ server *Server }

// Get implements client.Reader.
func (c cache) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	return c.server.get(key, into)
}

// List implements client.Reader. It returns the objects of a framework.Selected only.
func (c cache) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	err := c.server.list(into, (&client.ListOptions{}).ApplyOptions(options))
	by, selected := framework.SelectedBy(options)
	if err != nil || !selected {
		return err
	}
	all, err := meta.ExtractList(into)
	if err != nil {
		return err
	}
	return meta.SetList(into, slices.DeleteFunc(all, func(o runtime.Object) bool {
		object, ok := o.(client.Object)
		return !ok || by.ValueOf(object) != by.Value
	}))
}

// All returns the objects of the kind, in order of their names.
func All[T client.Object](s *Server, of T) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []T
	for _, key := range sortedKeys(s.objects[Kind(of)]) {
		if o, ok := s.objects[Kind(of)][key].DeepCopyObject().(T); ok {
			all = append(all, o)
		}
	}
	return all
}

// Writes returns the calls that have changed something, in order; the caller owns the
// slice.
func (s *Server) Writes() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// count counts a read.
func (s *Server) count() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
}

// Reads is how many reads and lists there were.
func (s *Server) Reads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

// Forget resets the counters.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes, s.reads = nil, 0
}

// stamp gives the object the next version. It must be called with mu held.
func (s *Server) stamp(o client.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
}

// store must be called with mu held.
func (s *Server) store(o client.Object) {
	kind := Kind(o)
	if s.objects[kind] == nil {
		s.objects[kind] = map[client.ObjectKey]client.Object{}
	}
	s.objects[kind][client.ObjectKeyFromObject(o)] = o
}

func (s *Server) notify(o client.Object, deleted bool) {
	for _, f := range s.changed {
		f(copyOf(o), deleted)
	}
}

func copyOf(o client.Object) client.Object {
	c, _ := reflect.TypeAssert[client.Object](reflect.ValueOf(o.DeepCopyObject()))
	return c
}

// plain removes the kind from a typed object: no client gets it with one.
func plain(o client.Object) client.Object {
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return o
}

// assign copies one object into another of its type.
func assign(from runtime.Object, into any) error {
	to, value := reflect.ValueOf(into).Elem(), reflect.ValueOf(from.DeepCopyObject()).Elem()
	if to.Type() != value.Type() {
		return fmt.Errorf("the object is a %s, not a %s", value.Type(), to.Type())
	}
	to.Set(value)
	return nil
}

func sortedKeys(objects map[client.ObjectKey]client.Object) []client.ObjectKey {
	return slices.SortedFunc(maps.Keys(objects), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// NotFound is the answer for an object that there is not.
func NotFound(kind, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
}

// AlreadyExists is the answer to the creation of an object that there is.
func AlreadyExists(kind, name string) error {
	return apierrors.NewAlreadyExists(schema.GroupResource{Resource: kind}, name)
}

// Conflict is the answer to a write whose precondition fails.
func Conflict(kind, name string) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: kind}, name, fmt.Errorf("the object has been modified"))
}

// Invalid is the answer to an object that is not valid.
func Invalid(format string, args ...any) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", fmt.Sprintf(format, args...), 0, false)
}

// checkSize is ValidateConfigMap of k8s.io/kubernetes/pkg/apis/core/validation, for the size of the data.
func checkSize(o client.Object) error {
	object, ok := o.(*corev1.ConfigMap)
	if !ok {
		return nil
	}
	size := 0
	for _, value := range object.Data {
		size += len(value)
	}
	if size <= corev1.MaxSecretSize {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, object.Name, field.ErrorList{field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize)})
}
