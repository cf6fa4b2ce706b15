// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/schema"
)

// Fields is a set of field paths of a kind. It is immutable. Nil means only the names.
type Fields struct {
	// root is normalized: without the fields that are always kept, and without children of complete fields.
	root *node
}

// node is a field, or an element of a list or map, and what is used of it. A node without children that is not
// complete means that only the presence is used, and for a list the number of its elements.
type node struct {
	// all means that the complete value is used.
	all bool
	// children are the fields or keys that are used.
	children map[string]*node
	// any is what is used of all elements of a list, or of all values of a map. If it is set, all keys of a
	// map are used.
	any *node
}

// child returns the node of a field or key. If the complete value is used, it is the node itself.
func (n *node) child(name string) *node {
	if n.all {
		return n
	}
	c := n.children[name]
	if c == nil {
		if n.children == nil {
			n.children = map[string]*node{}
		}
		c = &node{}
		n.children[name] = c
	}
	return c
}

// element returns the node of all elements.
func (n *node) element() *node {
	if n.all {
		return n
	}
	if n.any == nil {
		n.any = &node{}
	}
	return n.any
}

// merge returns what is used by either. Nil means nothing.
func (n *node) merge(o *node) *node {
	switch {
	case n == nil:
		return o
	case o == nil || n == o:
		return n
	case n.all || o.all:
		return &node{all: true}
	}
	m := &node{any: n.any.merge(o.any)}
	if len(n.children)+len(o.children) > 0 {
		m.children = maps.Clone(n.children)
		if m.children == nil {
			m.children = map[string]*node{}
		}
		for name, c := range o.children {
			m.children[name] = m.children[name].merge(c)
		}
	}
	return m
}

// normalize returns a copy in which equal sets are equal.
func (n *node) normalize() *node {
	if n == nil || n.all {
		return n
	}
	m := &node{any: n.any.normalize()}
	for name, c := range n.children {
		c = c.merge(n.any).normalize()
		if m.any != nil && reflect.DeepEqual(c, m.any) {
			continue
		}
		if m.children == nil {
			m.children = map[string]*node{}
		}
		m.children[name] = c
	}
	return m
}

// empty returns whether only the presence is used.
func (n *node) empty() bool { return !n.all && n.any == nil && len(n.children) == 0 }

// always are the fields that are always kept.
var always = func() *node {
	whole := &node{all: true}
	metadata := map[string]*node{}
	for _, name := range []string{
		"name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences", "deletionTimestamp", "creationTimestamp",
	} {
		metadata[name] = whole
	}
	return &node{children: map[string]*node{
		"apiVersion": whole, "kind": whole, "metadata": {children: metadata},
		"spec": {children: map[string]*node{"nodeName": whole}},
	}}
}()

// fieldsOf returns the fields of a node. Nil means only those that are always kept. The result is not nil.
func fieldsOf(n *node) *Fields {
	if n == nil {
		return &Fields{root: nothing}
	}
	n = n.normalize()
	if !n.all {
		delete(n.children, "apiVersion")
		delete(n.children, "kind")
		if m := n.children["metadata"]; m != nil && !m.all && m.any == nil {
			for name := range always.children["metadata"].children {
				delete(m.children, name)
			}
			if m.empty() {
				delete(n.children, "metadata")
			}
		}
	}
	return &Fields{root: n}
}

// Union returns the fields of both.
func (f *Fields) Union(other *Fields) *Fields {
	switch {
	case f == nil:
		return other
	case other == nil:
		return f
	}
	return fieldsOf(f.root.merge(other.root))
}

// String returns the same text for the same fields, such as "metadata.annotations,spec.drivers". "*" means
// all. A path that ends with a question mark means that only the presence of the field is used; [*]
// means all elements of a list or map.
func (f *Fields) String() string {
	if f == nil || f.root.empty() {
		return ""
	}
	if f.root.all {
		return "*"
	}
	return strings.Join(f.root.paths(nil, ""), ",")
}

var plainName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func (n *node) paths(to []string, prefix string) []string {
	if n.all {
		return append(to, prefix)
	}
	if n.empty() {
		return append(to, prefix+"?")
	}
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		path := prefix + "[" + strconv.Quote(name) + "]"
		if plainName.MatchString(name) {
			path = strings.TrimPrefix(prefix+"."+name, ".")
		}
		to = n.children[name].paths(to, path)
	}
	if n.any != nil {
		to = n.any.paths(to, prefix+"[*]")
	}
	return to
}

// Transform reduces an object of the cache to the fields. It is a toolscache.TransformFunc: it handles
// typed and unstructured objects, and returns others, such as tombstones, unchanged. It does not change its
// argument. The result shares memory with it.
//
// The result always has apiVersion, kind, the name, namespace, uid, resourceVersion, labels, ownerReferences,
// deletionTimestamp and creationTimestamp of the metadata, and spec.nodeName. Lists keep the number of their
// elements.
func (f *Fields) Transform(o any) (any, error) {
	used := always
	if f != nil {
		used = f.root.merge(always)
	}
	if used.all {
		return o, nil
	}
	switch o := o.(type) {
	case *unstructured.Unstructured:
		if kept, ok := used.prune(o.Object).(map[string]any); ok {
			return &unstructured.Unstructured{Object: kept}, nil
		}
		return o, nil
	case client.Object:
		v := reflect.ValueOf(o)
		if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
			return o, nil
		}
		return used.pruneTyped(v).Interface(), nil
	default:
		return o, nil
	}
}

// of returns what is used of a key.
func (n *node) of(key string) *node { return n.children[key].merge(n.any) }

// prune returns the used part of a value of an unstructured object.
func (n *node) prune(v any) any {
	if n.all {
		return v
	}
	switch v := v.(type) {
	case map[string]any:
		kept := make(map[string]any, min(len(v), len(n.children)))
		if n.any == nil {
			for name, c := range n.children {
				if field, ok := v[name]; ok {
					kept[name] = c.prune(field)
				}
			}
			return kept
		}
		for name, field := range v {
			kept[name] = n.of(name).prune(field)
		}
		return kept
	case []any:
		kept := make([]any, len(v))
		for i, elem := range v {
			kept[i] = n.elementOrNothing().prune(elem)
		}
		return kept
	default:
		return v
	}
}

var nothing = &node{}

func (n *node) elementOrNothing() *node {
	if n.any == nil {
		return nothing
	}
	return n.any
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// pruneTyped returns the used part of a Go value. Values of scalar types are complete.
func (n *node) pruneTyped(v reflect.Value) reflect.Value {
	t := v.Type()
	if n.all || t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
		return v
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		kept := reflect.New(t.Elem())
		kept.Elem().Set(n.pruneTyped(v.Elem()))
		return kept
	case reflect.Struct:
		return n.pruneStruct(v)
	case reflect.Slice:
		if v.IsNil() || !structured(t.Elem()) {
			return v
		}
		kept := reflect.MakeSlice(t, v.Len(), v.Len())
		for i := range v.Len() {
			kept.Index(i).Set(n.elementOrNothing().pruneTyped(v.Index(i)))
		}
		return kept
	case reflect.Map:
		return n.pruneMap(v)
	default:
		return v
	}
}

// structured returns whether values of the type can be reduced.
func structured(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Struct, reflect.Slice, reflect.Map:
		return true
	default:
		return false
	}
}

func (n *node) pruneStruct(v reflect.Value) reflect.Value {
	t := schema.Of(v.Type())
	if t == nil || !t.IsStruct() || n.any != nil {
		return v
	}
	kept := reflect.New(v.Type()).Elem()
	for name, c := range n.children {
		f, ok := t.Field(name)
		if !ok {
			continue
		}
		from := f.In(v)
		if !from.IsValid() {
			continue
		}
		to := f.Make(kept)
		to.Set(c.pruneTyped(from))
		if f.Omitted(to) && !f.Omitted(from) {
			to.Set(from)
		}
	}
	return kept
}

func (n *node) pruneMap(v reflect.Value) reflect.Value {
	if v.IsNil() || v.Type().Key().Kind() != reflect.String {
		return v
	}
	kept := reflect.MakeMap(v.Type())
	if n.any != nil {
		for it := v.MapRange(); it.Next(); {
			kept.SetMapIndex(it.Key(), n.of(it.Key().String()).pruneTyped(it.Value()))
		}
		return kept
	}
	for name, c := range n.children {
		key := reflect.ValueOf(name).Convert(v.Type().Key())
		if value := v.MapIndex(key); value.IsValid() {
			kept.SetMapIndex(key, c.pruneTyped(value))
		}
	}
	if kept.Len() == 0 && v.Len() > 0 {
		// An empty map counts as absent. The smallest key keeps it present.
		keys := v.MapKeys()
		first := slices.MinFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		kept.SetMapIndex(first, nothing.pruneTyped(v.MapIndex(first)))
	}
	return kept
}
