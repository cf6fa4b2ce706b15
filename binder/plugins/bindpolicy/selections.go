// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
)

// byNodeName is the field of selections that are read by node.
const byNodeName = "spec.nodeName"

// watch is a selection from which policies read. It is immutable.
type watch struct {
	framework.Selection
	// key is the same for watches of the same objects, and fields are those that the cache holds.
	key    string
	fields *policy.Fields
}

// reads are the watches from which a policy reads. Those that it does not need are nil.
type reads struct {
	namespace, claims *watch
	// resources contains the watch of each resource by its name in expressions.
	resources map[string]*watch
	// live reads objects that are too large for the cache.
	live framework.Reader
}

// named is a watch with the path of the field that needs it.
type named struct {
	*watch
	field string
}

// all returns the watches in a stable order.
func (r reads) all(n policy.Needs) []named {
	var all []named
	if r.namespace != nil {
		all = append(all, named{r.namespace, "namespaceObject"})
	}
	if r.claims != nil {
		all = append(all, named{r.claims, "claims"})
	}
	for _, resource := range n.Resources {
		all = append(all, named{r.resources[resource.Name], "spec.resources[" + resource.Name + "]"})
	}
	return all
}

// replaced returns the reads from other watches.
func (r reads) replaced(by func(*watch) *watch) reads {
	other := reads{resources: make(map[string]*watch, len(r.resources)), live: r.live}
	if r.namespace != nil {
		other.namespace = by(r.namespace)
	}
	if r.claims != nil {
		other.claims = by(r.claims)
	}
	for name, w := range r.resources {
		other.resources[name] = by(w)
	}
	return other
}

// objectsOf returns everything that a policy needs as resources.
func objectsOf(n policy.Needs) (namespace, claims *policy.Resource, others []*policy.Resource) {
	if n.Namespace != nil {
		namespace = &policy.Resource{Kind: corev1.SchemeGroupVersion.WithKind("Namespace"), ByName: true, Fields: n.Namespace}
	}
	if n.Claims != nil {
		claims = &policy.Resource{Kind: corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), ByName: true, Fields: n.Claims}
	}
	return namespace, claims, n.Resources
}

// sharing combines the fields that policies use of the same objects, so that they share a watch. It is safe for
// concurrent use.
type sharing struct {
	mu sync.Mutex
	// fields contains the fields by the key of a resource.
	fields map[string]*policy.Fields
}

// readsOf returns the watches for the needs of a policy. Each has the fields that this policy and earlier ones use.
func (s *sharing) readsOf(n policy.Needs, live framework.Reader) reads {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fields = combine(s.fields, n)
	watchOf := func(r *policy.Resource) *watch {
		if r == nil {
			return nil
		}
		combined := *r
		combined.Fields = s.fields[r.Key()]
		return &watch{Selection: *selectionOf(&combined), key: r.Key(), fields: combined.Fields}
	}
	namespace, claims, others := objectsOf(n)
	r := reads{namespace: watchOf(namespace), claims: watchOf(claims), resources: make(map[string]*watch, len(others)), live: live}
	for _, resource := range others {
		r.resources[resource.Name] = watchOf(resource)
	}
	return r
}

// restart forgets the fields of policies that do not exist any more.
func (s *sharing) restart(needs []policy.Needs) {
	var fields map[string]*policy.Fields
	for _, n := range needs {
		fields = combine(fields, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fields = fields
}

// combine adds the fields of a policy by the key of the resource.
func combine(fields map[string]*policy.Fields, n policy.Needs) map[string]*policy.Fields {
	namespace, claims, others := objectsOf(n)
	for _, r := range append([]*policy.Resource{namespace, claims}, others...) {
		if r == nil {
			continue
		}
		if fields == nil {
			fields = map[string]*policy.Fields{}
		}
		fields[r.Key()] = fields[r.Key()].Union(r.Fields)
	}
	return fields
}

// share returns the policies with the same watch for the same objects, if one of their watches has the fields that all of them
// use. A policy whose watches do not change stays the same entry.
func share(inForce map[string]*entry) map[string]*entry {
	var used map[string]*policy.Fields
	watches := map[string]*watch{}
	for _, e := range inForce {
		if e.unwatched == "" {
			used = combine(used, e.compiled.Needs())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(inForce)) {
		e := inForce[name]
		if e.unwatched != "" {
			continue
		}
		for _, w := range e.reads.all(e.compiled.Needs()) {
			has, best := w.fields.String(), watches[w.key]
			complete := w.fields.Union(used[w.key]).String() == has
			if complete && (best == nil || len(has) < len(best.fields.String())) {
				watches[w.key] = w.watch
			}
		}
	}
	shared := make(map[string]*entry, len(inForce))
	for name, e := range inForce {
		changed := false
		r := e.reads.replaced(func(w *watch) *watch {
			best := watches[w.key]
			if e.unwatched != "" || best == nil || best.Name == w.Name {
				return w
			}
			changed = true
			return best
		})
		if changed {
			other := *e
			other.reads = r
			e = &other
		}
		shared[name] = e
	}
	return shared
}

// selectionOf returns the selection of a resource. Resources that differ only in their Name have the same selection. If
// the name of the object is constant, the API server sends only objects with this name: one in each namespace.
func selectionOf(r *policy.Resource) *framework.Selection {
	s := &framework.Selection{Example: newObject(r.Kind), Namespace: r.Namespace, Labels: r.Labels, Transform: reduce(r.Fields)}
	by := "all"
	switch {
	case r.ByName:
		by, s.Field = "by name", framework.ByName
		if r.Constant != "" {
			by, s.Fields = "with name "+r.Constant, fields.OneTermEqualSelector(framework.ByName, r.Constant)
		}
	case r.OnNode:
		by, s.Field, s.Value, s.Unsupported = "by node", byNodeName, nodeNameOf, !selectableByNode(r.Kind)
	}
	name := []string{fmt.Sprintf("%s/%s %s %s", Name, r.Kind.GroupVersion(), r.Kind.Kind, by)}
	if r.Namespace != "" {
		name = append(name, "namespace "+r.Namespace)
	}
	if r.Labels != nil && !r.Labels.Empty() {
		name = append(name, "labels "+r.Labels.String())
	}
	if used := r.Fields.String(); used != "" {
		name = append(name, "fields "+used)
	}
	s.Name = strings.Join(name, "; ")
	return s
}

// selectableByNode returns whether the API server supports spec.nodeName as a field selector of the kind.
func selectableByNode(kind schema.GroupVersionKind) bool {
	switch kind.GroupKind() {
	case schema.GroupKind{Kind: "Pod"}, schema.GroupKind{Group: "resource.k8s.io", Kind: "ResourceSlice"}:
		return true
	default:
		return false
	}
}

// isBuiltIn returns whether the kind has a Go type of k8s.io/api.
func isBuiltIn(kind schema.GroupVersionKind) bool { return scheme.Scheme.Recognizes(kind) }

// newObject returns an object of the Go type of the kind, or an unstructured one.
func newObject(kind schema.GroupVersionKind) client.Object {
	if o, err := scheme.Scheme.New(kind); err == nil {
		if object, ok := o.(client.Object); ok {
			return object
		}
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u
}

// newList returns a list for objects like the example.
func newList(example client.Object) client.ObjectList {
	if u, ok := example.(*unstructured.Unstructured); ok {
		list := &unstructured.UnstructuredList{}
		kind := u.GroupVersionKind()
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		return list
	}
	if kinds, _, err := scheme.Scheme.ObjectKinds(example); err == nil {
		for _, kind := range kinds {
			if o, err := scheme.Scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List")); err == nil {
				if list, ok := o.(client.ObjectList); ok {
					return list
				}
			}
		}
	}
	return nil
}

// nodeNameOf returns spec.nodeName of an object, or an empty string.
func nodeNameOf(o client.Object) string {
	switch typed := o.(type) {
	case *corev1.Pod:
		return typed.Spec.NodeName
	case *unstructured.Unstructured:
		name, _, _ := unstructured.NestedString(typed.Object, strings.Split(byNodeName, ".")...)
		return name
	}
	spec := reflect.Indirect(reflect.ValueOf(o)).FieldByName("Spec")
	if spec.Kind() != reflect.Struct {
		return ""
	}
	name := spec.FieldByName("NodeName")
	if name.Kind() == reflect.Pointer && !name.IsNil() {
		name = name.Elem()
	}
	if name.Kind() != reflect.String {
		return ""
	}
	return name.String()
}
