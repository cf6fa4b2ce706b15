// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schema gives CEL types and CEL values to Go types of the Kubernetes API, by reflection. Values are
// read from the Go objects when an expression accesses them, so no object is converted.
//
// Expressions see an object as its JSON form, with these rules:
//
//   - A field is absent if its JSON form lacks it or is null: empty values with omitempty, nil pointers, zero
//     times. has(x.f) is then false, and x.f is an error. Use has, x.?f, or x[?k] for optional fields.
//   - An empty value without omitempty is present: an empty string, 0, false, an empty list or map.
//   - apiVersion and kind of a kind are always present, although clients leave them empty.
//   - Quantities are strings, such as "500m". Use quantity(x) to compare them.
//   - Times are timestamps, and metav1.Duration is a duration. In custom resources, both are strings.
//     timestamp(x) and duration(x) accept both forms.
//   - An IntOrString is dyn: an int or a string. []byte is bytes.
//   - Iteration over a map is in the order of its keys.
//   - Fields with arbitrary content (RawExtension, FieldsV1) do not exist, and neither do
//     metadata.managedFields and status.images of a Node, which Prebind does not keep in memory.
//   - A field whose name is a reserved word of CEL can be written as it is, or escaped: x.namespace and
//     x.__namespace__ are the same.
//
// k8s.io/apiserver/pkg/cel/common.TypedToVal has the same purpose, but fails for maps whose key is a named
// type (status.allocatable), and its lists share memory with the result of an addition.
package schema

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"sync"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Type is the CEL type of a Go type. It is immutable.
type Type struct {
	// cel is the type for the checker.
	cel *types.Type
	// of is the Go type without pointers.
	of reflect.Type
	// convert returns the CEL value of a Go value that is not a pointer.
	convert func(reflect.Value) ref.Val
	// fields are the fields of a struct by JSON name.
	fields map[string]*Field
}

// Field is a field of a struct.
type Field struct {
	// Type of the value.
	Type *Type
	// in reads the field.
	in *value.FieldCacheEntry
	// constant is the value of apiVersion and kind.
	constant types.String
}

var (
	marshaler = reflect.TypeFor[json.Marshaler]()
	object    = reflect.TypeFor[client.Object]()

	// omitted are fields that do not exist in expressions.
	omitted = map[reflect.Type]string{
		reflect.TypeFor[metav1.ObjectMeta](): "managedFields",
		reflect.TypeFor[corev1.NodeStatus](): "images",
	}
)

// registry contains the types by Go type and the struct types by name.
var registry = struct {
	sync.Mutex
	types map[reflect.Type]*Type
	names map[string]*Type
}{types: maps.Clone(scalars), names: map[string]*Type{}}

// For returns the type of T.
func For[T any]() *Type { return Of(reflect.TypeFor[T]()) }

// Of returns the type of a Go type. Pointers count as their target. It returns nil for types without a
// fixed form, such as interfaces. Results are cached. It is safe for concurrent use.
func Of(t reflect.Type) *Type {
	registry.Lock()
	defer registry.Unlock()
	return build(t)
}

// ByName returns the struct type with the name of its CEL type. Only types that Of returned, and the types of
// their fields, are known.
func ByName(name string) (*Type, bool) {
	registry.Lock()
	defer registry.Unlock()
	t, ok := registry.names[name]
	return t, ok
}

// OfKind returns the type of a kind of client-go's scheme, or nil for other kinds.
func OfKind(kind schema.GroupVersionKind) *Type {
	t, ok := scheme.Scheme.AllKnownTypes()[kind]
	if !ok || kind.Version == runtime.APIVersionInternal || !reflect.PointerTo(t).Implements(object) {
		return nil
	}
	return Of(t)
}

// build returns the type. The caller holds the lock of the registry. A struct is registered before its fields,
// so a type may contain itself.
func build(t reflect.Type) *Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if found, ok := registry.types[t]; ok {
		return found
	}
	if t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
		return nil
	}
	built := &Type{of: t}
	switch t.Kind() {
	case reflect.Struct:
		built.asStruct()
		return built
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			built.cel, built.convert = types.BytesType, func(v reflect.Value) ref.Val { return types.Bytes(v.Bytes()) }
		} else if elem := build(t.Elem()); elem != nil {
			built.cel, built.convert = types.NewListType(elem.cel), elem.list
		}
	case reflect.Map:
		if elem := build(t.Elem()); elem != nil && t.Key().Kind() == reflect.String {
			built.cel, built.convert = types.NewMapType(types.StringType, elem.cel), elem.mapOf
		}
	default:
		if kind, ok := plain[t.Kind()]; ok {
			built.cel, built.convert = kind.cel, kind.convert
		}
	}
	if built.cel == nil {
		return nil
	}
	registry.types[t] = built
	return built
}

// asStruct registers the type of a struct, and adds its fields.
func (t *Type) asStruct() {
	name := nameOf(t.of)
	registry.types[t.of], registry.names[name] = t, t
	t.cel, t.convert, t.fields = types.NewObjectType(name), func(v reflect.Value) ref.Val { return &structValue{t: t, v: v} }, map[string]*Field{}
	var kind schema.GroupVersionKind
	if example, ok := reflect.TypeAssert[client.Object](reflect.New(t.of)); ok {
		if kinds, _, err := scheme.Scheme.ObjectKinds(example); err == nil && len(kinds) > 0 {
			kind = kinds[0]
		}
	}
	empty := reflect.Zero(t.of)
	for name, in := range value.TypeReflectEntryOf(t.of).Fields() {
		typed := build(in.GetFrom(empty).Type())
		if typed == nil || omitted[t.of] == name {
			continue
		}
		f := &Field{Type: typed, in: in}
		switch {
		case kind.Empty():
		case name == "apiVersion":
			f.constant = types.String(kind.GroupVersion().String())
		case name == "kind":
			f.constant = types.String(kind.Kind)
		}
		t.fields[name] = f
	}
}

// nameOf returns the name of a struct type, such as core/v1.Pod. It contains a slash unless the type has no
// package, so no expression can refer to it.
func nameOf(t reflect.Type) string {
	path := t.PkgPath()
	for _, prefix := range []string{"k8s.io/api/", "k8s.io/apimachinery/pkg/apis/"} {
		path = strings.TrimPrefix(path, prefix)
	}
	if t.Name() == "" {
		return t.String()
	}
	return path + "." + t.Name()
}

// CEL returns the type for CEL's type checker.
func (t *Type) CEL() *types.Type { return t.cel }

// Field returns the field with the name, which may be escaped as in CEL.
func (t *Type) Field(name string) (*Field, bool) {
	f, ok := t.fields[name]
	if plain, escaped := apiservercel.Unescape(name); !ok && escaped {
		f, ok = t.fields[plain]
	}
	return f, ok
}
