// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/jsonpatch"
)

// apiServer is an API server in memory. It does for ResourceClaims what the real
// one was seen to do: the three kinds of patches with their preconditions, status
// apart from the rest, the validation of a status, and the notes of who made a
// reservation. controller-runtime's fake has neither the validation nor the check
// of a UID.
type apiServer struct {
	mu      sync.Mutex
	version int
	objects map[string]map[client.ObjectKey]client.Object
	hub     *framework.Hub
	// writes are those that were carried out and changed something.
	writes []write
	// reads counts what was asked for.
	reads int
	// faults are what the model has seen; see noteTheft.
	faults []string
}

// write is one of a connection.
type write struct {
	verb, kind string
	key        client.ObjectKey
}

func (w write) String() string { return w.verb + " " + w.kind + " " + w.key.Name }

func newAPI(objects ...client.Object) *apiServer {
	s := &apiServer{objects: map[string]map[client.ObjectKey]client.Object{}, hub: framework.NewHub()}
	for _, o := range objects {
		s.put(o)
	}
	return s
}

func kindOf(o runtime.Object) string { return reflect.TypeOf(o).Elem().Name() }

func notFound(kind, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
}

func conflict(kind, name string) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: kind}, name, fmt.Errorf("it has changed"))
}

func invalid(format string, args ...any) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", fmt.Sprintf(format, args...), 0, false)
}

// store keeps the object with a new version. It must be called with mu held.
func (s *apiServer) store(o client.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	kind := kindOf(o)
	if s.objects[kind] == nil {
		s.objects[kind] = map[client.ObjectKey]client.Object{}
	}
	s.objects[kind][client.ObjectKeyFromObject(o)] = o
}

// put stores the object as a test says it is.
func (s *apiServer) put(o client.Object) {
	o, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return
	}
	s.mu.Lock()
	s.store(o)
	s.mu.Unlock()
	s.tell(o)
}

func (s *apiServer) tell(o client.Object) {
	s.hub.Changed(framework.RefTo(o, o.GetNamespace(), o.GetName()))
}

// remove deletes the object as a test says.
func (s *apiServer) remove(o client.Object) {
	s.mu.Lock()
	delete(s.objects[kindOf(o)], client.ObjectKeyFromObject(o))
	s.mu.Unlock()
	s.tell(o)
}

func (s *apiServer) get(key client.ObjectKey, into client.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.objects[kindOf(into)][key]
	if found == nil {
		return notFound(kindOf(into), key.Name)
	}
	return assign(found, into)
}

// assign copies one object into another of its type.
func assign(from runtime.Object, into any) error {
	to, value := reflect.ValueOf(into).Elem(), reflect.ValueOf(from.DeepCopyObject()).Elem()
	if to.Type() != value.Type() {
		return fmt.Errorf("a %s is no %s", value.Type(), to.Type())
	}
	to.Set(value)
	return nil
}

// claim returns the claim of the default namespace, or nil.
func (s *apiServer) claim(name string) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{}
	if s.get(client.ObjectKey{Namespace: "default", Name: name}, claim) != nil {
		return nil
	}
	return claim
}

// change changes the status, or anything else, of a claim, as somebody else does.
func (s *apiServer) change(name, manager string, f func(*resourcev1.ResourceClaim)) {
	s.mu.Lock()
	found, ok := s.objects["ResourceClaim"][client.ObjectKey{Namespace: "default", Name: name}].(*resourcev1.ResourceClaim)
	if !ok {
		s.mu.Unlock()
		return
	}
	changed := found.DeepCopy()
	f(changed)
	noteReservations(found, changed, manager)
	s.store(changed)
	s.mu.Unlock()
	s.tell(changed)
}

// written lists the writes, in order.
func (s *apiServer) written() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, w := range s.writes {
		all = append(all, w.String())
	}
	return all
}

func (s *apiServer) forgetWrites() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes, s.reads = nil, 0
}

func (s *apiServer) listInto(list client.ObjectList, opts ...client.ListOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := reflect.TypeOf(list).Elem().Name()
	return listFrom(s.objects[kind[:len(kind)-len("List")]], list, opts...)
}

func listFrom(objects map[client.ObjectKey]client.Object, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	keys := make([]client.ObjectKey, 0, len(objects))
	for key := range objects {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	})
	var items []runtime.Object
	for _, key := range keys {
		object := objects[key]
		if o.Namespace != "" && o.Namespace != key.Namespace || o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(object.GetLabels())) {
			continue
		}
		if o.FieldSelector != nil && !matches(object, o.FieldSelector.Requirements()) {
			continue
		}
		items = append(items, object.DeepCopyObject())
	}
	return meta.SetList(list, items)
}

// matches says whether the object has all of the values in the plugin's indexes.
func matches(object client.Object, terms fields.Requirements) bool {
	for _, i := range append(claimIndexes(), sliceIndexes()...) {
		for _, term := range terms {
			if i.field == term.Field && kindOf(i.of) == kindOf(object) && !slices.Contains(i.keys(object), term.Value) {
				return false
			}
		}
	}
	return true
}

// patched applies the patch to a copy. It must be called with mu held.
func (s *apiServer) patched(o client.Object, p client.Patch) (before, after client.Object, err error) {
	key := client.ObjectKeyFromObject(o)
	before = s.objects[kindOf(o)][key]
	if before == nil {
		return nil, nil, notFound(kindOf(o), key.Name)
	}
	content, err := p.Data(o)
	if err != nil {
		return nil, nil, err
	}
	after, err = jsonpatch.To(before, p.Type(), content)
	if p.Type() == types.JSONPatchType && err != nil {
		err = invalid("%v", err)
	}
	return before, after, err
}

// update stores the object after a write, when it may be. It must be called with mu
// held.
func (s *apiServer) update(before, after client.Object, status bool, manager string) error {
	kind, name := kindOf(before), before.GetName()
	if version := after.GetResourceVersion(); version != "" && version != before.GetResourceVersion() {
		return conflict(kind, name)
	}
	if after.GetUID() != before.GetUID() {
		return invalid("metadata.uid: Invalid value: %q: field is immutable", after.GetUID())
	}
	was, isClaim := before.(*resourcev1.ResourceClaim)
	if isClaim {
		now, ok := after.(*resourcev1.ResourceClaim)
		if !ok {
			return fmt.Errorf("%T is no claim", after)
		}
		now.ManagedFields = slices.Clone(was.ManagedFields)
		if status {
			now.ObjectMeta, now.Spec = *was.ObjectMeta.DeepCopy(), *was.Spec.DeepCopy()
			if err := validStatus(was, now); err != nil {
				return err
			}
			s.noteTheft(was, now, manager)
			noteReservations(was, now, manager)
		} else {
			now.Status = *was.Status.DeepCopy()
			if was.DeletionTimestamp != nil && len(now.Finalizers) > len(was.Finalizers) {
				return invalid("no new finalizers can be added if the object is being deleted")
			}
		}
	}
	after.SetResourceVersion(before.GetResourceVersion())
	if equality.Semantic.DeepEqual(before, after) {
		return nil // Nothing changes, not even the version.
	}
	s.store(after)
	return nil
}

// validStatus is what the API server asks of a status.
func validStatus(was, now *resourcev1.ResourceClaim) error {
	reserved := now.Status.ReservedFor
	uids := sets.New[types.UID]()
	for _, r := range reserved {
		if uids.Has(r.UID) {
			return invalid("status.reservedFor: Duplicate value: %s", r.UID)
		}
		uids.Insert(r.UID)
	}
	switch {
	case len(reserved) > resourcev1.ResourceClaimReservedForMaxSize:
		return invalid("status.reservedFor: Too many")
	case len(reserved) > 0 && now.Status.Allocation == nil:
		return invalid("status.reservedFor: Forbidden: may not be specified when `allocated` is not set")
	case was.DeletionTimestamp != nil && len(sets.New(reserved...).Difference(sets.New(was.Status.ReservedFor...))) > 0:
		return invalid("new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")
	case was.Status.Allocation != nil && now.Status.Allocation != nil && !equality.Semantic.DeepEqual(was.Status.Allocation, now.Status.Allocation):
		return invalid("status.allocation: field is immutable")
	}
	return nil
}

// noteReservations keeps the managed fields of the reservations.
func noteReservations(was, now *resourcev1.ResourceClaim, manager string) {
	owners := map[types.UID]string{}
	for _, r := range was.Status.ReservedFor {
		for _, entry := range was.ManagedFields {
			var fields map[string]map[string]map[string]any
			if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) == nil && fields["f:status"]["f:reservedFor"][fieldKey(r.UID)] != nil {
				owners[r.UID] = entry.Manager
			}
		}
	}
	byManager := map[string]map[string]any{}
	for _, r := range now.Status.ReservedFor {
		owner, had := owners[r.UID]
		if !had {
			owner = manager
		}
		if byManager[owner] == nil {
			byManager[owner] = map[string]any{}
		}
		byManager[owner][fieldKey(r.UID)] = map[string]any{".": map[string]any{}, "f:uid": map[string]any{}}
	}
	now.ManagedFields = nil
	for _, owner := range sets.List(sets.KeySet(byManager)) {
		raw, err := json.Marshal(map[string]any{"f:status": map[string]any{"f:reservedFor": byManager[owner]}})
		if err == nil {
			now.ManagedFields = append(now.ManagedFields, metav1.ManagedFieldsEntry{
				Manager: owner, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status", FieldsV1: metav1.NewFieldsV1(string(raw)),
			})
		}
	}
}

func fieldKey(uid types.UID) string { return `k:{"uid":"` + string(uid) + `"}` }

// connection is how one replica reaches the API server.
type connection struct {
	client.Writer // Nothing else is written.
	api           *apiServer
	// before is asked before every write, and before every read for the verb get; an
	// error is the answer, and nothing is done.
	before func(w write) error
	// after is asked when it was done; an error is the answer all the same.
	after func(w write) error
	// step, when it is set, does what is asked for, or not, or later.
	step func(ctx context.Context, w write, do func() error) error
}

func (s *apiServer) connect() *connection { return &connection{api: s} }

// carry carries out a write.
func (c *connection) carry(ctx context.Context, w write, do func() error) error {
	if c.step != nil {
		return c.step(ctx, w, func() error { return c.carryNow(w, do) })
	}
	return c.carryNow(w, do)
}

func (c *connection) carryNow(w write, do func() error) error {
	if c.before != nil {
		if err := c.before(w); err != nil {
			return err
		}
	}
	c.api.mu.Lock()
	version := c.api.version
	err := do()
	changed := c.api.version != version
	if changed {
		c.api.writes = append(c.api.writes, w)
	}
	o := c.api.objects[w.kind][w.key]
	c.api.mu.Unlock()
	if changed && o != nil {
		c.api.tell(o)
	}
	if err == nil && c.after != nil {
		err = c.after(w)
	}
	return err
}

// ask carries out a read.
func (c *connection) ask(ctx context.Context, w write, do func() error) error {
	if c.step != nil {
		return c.step(ctx, w, do)
	}
	if c.before != nil {
		if err := c.before(w); err != nil {
			return err
		}
	}
	c.api.mu.Lock()
	c.api.reads++
	c.api.mu.Unlock()
	return do()
}

func (c *connection) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	return c.ask(ctx, write{"get", kindOf(into), key}, func() error { return c.api.get(key, into) })
}

func (c *connection) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.ask(ctx, write{"list", reflect.TypeOf(list).Elem().Name(), client.ObjectKey{}}, func() error { return c.api.listInto(list, opts...) })
}

func (c *connection) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	key := client.ObjectKeyFromObject(o)
	return c.carry(ctx, write{"create", kindOf(o), key}, func() error {
		if c.api.objects[kindOf(o)][key] != nil {
			return apierrors.NewAlreadyExists(schema.GroupResource{Resource: kindOf(o)}, o.GetName())
		}
		o.SetUID(types.UID(fmt.Sprintf("made-%d", c.api.version)))
		stored, ok := o.DeepCopyObject().(client.Object)
		if !ok {
			return fmt.Errorf("%T is no object", o)
		}
		c.api.store(stored)
		return assign(stored, o)
	})
}

func (c *connection) Update(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
	key := client.ObjectKeyFromObject(o)
	return c.carry(ctx, write{"update", kindOf(o), key}, func() error {
		before := c.api.objects[kindOf(o)][key]
		if before == nil {
			return notFound(kindOf(o), o.GetName())
		}
		if before.GetUID() != o.GetUID() {
			return conflict(kindOf(o), o.GetName())
		}
		after, ok := o.DeepCopyObject().(client.Object)
		if !ok {
			return fmt.Errorf("%T is no object", o)
		}
		if err := c.api.update(before, after, false, ""); err != nil {
			return err
		}
		return assign(c.api.objects[kindOf(o)][key], o)
	})
}

func (c *connection) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	key := client.ObjectKeyFromObject(o)
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	return c.carry(ctx, write{"delete", kindOf(o), key}, func() error {
		before := c.api.objects[kindOf(o)][key]
		if before == nil {
			return notFound(kindOf(o), o.GetName())
		}
		if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != before.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != before.GetResourceVersion()) {
			return conflict(kindOf(o), o.GetName())
		}
		delete(c.api.objects[kindOf(o)], key)
		c.api.version++
		return nil
	})
}

func (c *connection) patch(ctx context.Context, verb string, o client.Object, p client.Patch, status bool, manager string) error {
	key := client.ObjectKeyFromObject(o)
	return c.carry(ctx, write{verb, kindOf(o), key}, func() error {
		before, after, err := c.api.patched(o, p)
		if err != nil {
			return err
		}
		if err := c.api.update(before, after, status, manager); err != nil {
			return err
		}
		return assign(c.api.objects[kindOf(o)][key], o)
	})
}

func (c *connection) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	var options client.PatchOptions
	options.ApplyOptions(opts)
	return c.patch(ctx, "patch", o, p, false, options.FieldManager)
}

// Status implements client.StatusClient.
func (c *connection) Status() client.SubResourceWriter { return statusConnection{c: c} }

type statusConnection struct {
	client.SubResourceWriter
	c *connection
}

func (s statusConnection) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	var options client.SubResourcePatchOptions
	options.ApplyOptions(opts)
	return s.c.patch(ctx, "patch status", o, p, true, options.FieldManager)
}

// cached is a replica's cache: of claims as they were when they were last let
// through, of pods that are not bound, and of everything else.
type cached struct {
	api *apiServer
	// frozen, when it is set, are the claims that the cache has.
	frozen map[client.ObjectKey]client.Object
	// pods and nodes, when they are set, are what it has of those.
	pods  map[client.ObjectKey]*corev1.Pod
	nodes map[string]*corev1.Node
}

func (s *apiServer) cache() *cached { return &cached{api: s} }

// freeze keeps the claims as they are.
func (c *cached) freeze() {
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	c.frozen = maps.Clone(c.api.objects["ResourceClaim"])
	if c.frozen == nil {
		c.frozen = map[client.ObjectKey]client.Object{}
	}
}

// follow lets one claim through.
func (c *cached) follow(key client.ObjectKey) {
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	if o := c.api.objects["ResourceClaim"][key]; o != nil {
		c.frozen[key] = o
	} else {
		delete(c.frozen, key)
	}
}

func (c *cached) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *resourcev1.ResourceClaim:
		if c.frozen != nil {
			if found := c.frozen[key]; found != nil {
				return assign(found, into)
			}
			return notFound("ResourceClaim", key.Name)
		}
	case *corev1.Pod:
		if pod := c.pods[key]; pod != nil {
			return assign(pod, into)
		}
		if err := c.api.get(key, into); err != nil {
			return err
		}
		if into.Spec.NodeName != "" {
			*into = corev1.Pod{}
			return notFound("Pod", key.Name)
		}
		return nil
	case *corev1.Node:
		if node := c.nodes[key.Name]; node != nil {
			return assign(node, into)
		}
	}
	return c.api.get(key, into)
}

func (c *cached) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, claims := list.(*resourcev1.ResourceClaimList); claims && c.frozen != nil {
		return listFrom(c.frozen, list, opts...)
	}
	return c.api.listInto(list, opts...)
}
