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
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/common/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Type is the CEL type of a Go type. It is immutable.
type Type struct {
	form form
	// cel is the type for the checker.
	cel *types.Type
	// of is the Go type without pointers.
	of reflect.Type
	// elem is the type of the elements of a list or map.
	elem *Type
	// fields are the fields of a struct by JSON name.
	fields map[string]*Field
	// names are the keys of fields in order.
	names []string
	// kind is set for API kinds.
	kind schema.GroupVersionKind
}

// form is how values are converted.
type form int

const (
	formStruct form = iota
	formList
	formMap
	formString
	formBool
	formInt
	formUint
	formDouble
	formBytes
	formTime
	formMicroTime
	formDuration
	formQuantity
	formIntOrString
)

// Field is a field of a struct.
type Field struct {
	// Name in JSON.
	Name string
	// Type of the value.
	Type *Type
	// index is the path through embedded structs.
	index []int
	// omitEmpty and omitZero are the options of the json tag.
	omitEmpty, omitZero bool
	// constant is the value of apiVersion and kind.
	constant string
}

var (
	marshaler = reflect.TypeFor[json.Marshaler]()
	object    = reflect.TypeFor[client.Object]()

	// scalars are the structs with a form of their own.
	scalars = map[reflect.Type]*Type{
		reflect.TypeFor[metav1.Time]():        {form: formTime, cel: types.TimestampType},
		reflect.TypeFor[metav1.MicroTime]():   {form: formMicroTime, cel: types.TimestampType},
		reflect.TypeFor[metav1.Duration]():    {form: formDuration, cel: types.DurationType},
		reflect.TypeFor[resource.Quantity]():  {form: formQuantity, cel: types.StringType},
		reflect.TypeFor[intstr.IntOrString](): {form: formIntOrString, cel: types.DynType},
	}

	// omitted are fields that do not exist in expressions.
	omitted = map[reflect.Type][]string{
		reflect.TypeFor[metav1.ObjectMeta](): {"managedFields"},
		reflect.TypeFor[corev1.NodeStatus](): {"images"},
	}
)

// registry contains the types by Go type and the struct types by name.
var registry = struct {
	sync.RWMutex
	types map[reflect.Type]*Type
	names map[string]*Type
}{types: map[reflect.Type]*Type{}, names: map[string]*Type{}}

// For returns the type of T.
func For[T any]() *Type { return Of(reflect.TypeFor[T]()) }

// Of returns the type of a Go type. Pointers count as their target. It returns nil for types without a
// fixed form, such as interfaces. Results are cached. It is safe for concurrent use.
func Of(t reflect.Type) *Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	registry.RLock()
	found, ok := registry.types[t]
	registry.RUnlock()
	if ok {
		return found
	}
	registry.Lock()
	defer registry.Unlock()
	return build(t)
}

// ByName returns the struct type with the name of its CEL type. Only types that Of returned, and the types of
// their fields, are known.
func ByName(name string) (*Type, bool) {
	registry.RLock()
	defer registry.RUnlock()
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
	if s, ok := scalars[t]; ok {
		return s
	}
	if t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		return buildStruct(t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return register(&Type{form: formBytes, cel: types.BytesType, of: t})
		}
		if elem := build(t.Elem()); elem != nil {
			return register(&Type{form: formList, cel: types.NewListType(elem.cel), of: t, elem: elem})
		}
	case reflect.Map:
		if elem := build(t.Elem()); elem != nil && t.Key().Kind() == reflect.String {
			return register(&Type{form: formMap, cel: types.NewMapType(types.StringType, elem.cel), of: t, elem: elem})
		}
	case reflect.String:
		return register(&Type{form: formString, cel: types.StringType, of: t})
	case reflect.Bool:
		return register(&Type{form: formBool, cel: types.BoolType, of: t})
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return register(&Type{form: formInt, cel: types.IntType, of: t})
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return register(&Type{form: formUint, cel: types.IntType, of: t})
	case reflect.Float32, reflect.Float64:
		return register(&Type{form: formDouble, cel: types.DoubleType, of: t})
	default:
	}
	return nil
}

func register(t *Type) *Type {
	registry.types[t.of] = t
	return t
}

func buildStruct(t reflect.Type) *Type {
	name := nameOf(t)
	s := register(&Type{form: formStruct, cel: types.NewObjectType(name), of: t, fields: map[string]*Field{}})
	registry.names[name] = s
	if reflect.PointerTo(t).Implements(object) {
		if example, ok := reflect.TypeAssert[runtime.Object](reflect.New(t)); ok {
			if kinds, _, err := scheme.Scheme.ObjectKinds(example); err == nil && len(kinds) > 0 {
				s.kind = kinds[0]
			}
		}
	}
	s.addFields(t, nil)
	for name, f := range s.fields {
		s.names = append(s.names, name)
		if s.kind.Empty() || len(f.index) != 2 {
			continue
		}
		switch name {
		case "apiVersion":
			f.constant = s.kind.GroupVersion().String()
		case "kind":
			f.constant = s.kind.Kind
		}
	}
	slices.Sort(s.names)
	return s
}

// addFields adds the fields of a struct at the path. Fields of the outer struct win.
func (t *Type) addFields(of reflect.Type, path []int) {
	var embedded []reflect.StructField
	for i := range of.NumField() {
		f := of.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		opts := strings.Split(options, ",")
		switch {
		case !f.IsExported() || tag == "-":
			continue
		case slices.Contains(opts, "inline") || f.Anonymous && name == "":
			embedded = append(embedded, f)
			continue
		case name == "":
			name = f.Name
		}
		if _, ok := t.fields[name]; ok || slices.Contains(omitted[of], name) {
			continue
		}
		if typed := build(f.Type); typed != nil {
			t.fields[name] = &Field{
				Name: name, Type: typed, index: append(slices.Clone(path), i),
				omitEmpty: slices.Contains(opts, "omitempty"), omitZero: slices.Contains(opts, "omitzero"),
			}
		}
	}
	for _, f := range embedded {
		inner := f.Type
		for inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			t.addFields(inner, append(slices.Clone(path), f.Index...))
		}
	}
}

// nameOf returns the name of a struct type, such as core/v1.Pod. It contains a slash unless the type has no
// package, so no expression can refer to it.
func nameOf(t reflect.Type) string {
	path := t.PkgPath()
	for _, prefix := range []string{"k8s.io/api/", "k8s.io/apimachinery/pkg/apis/"} {
		if short, ok := strings.CutPrefix(path, prefix); ok {
			path = short
		}
	}
	if t.Name() == "" {
		return t.String()
	}
	return path + "." + t.Name()
}

// CEL returns the type for CEL's type checker.
func (t *Type) CEL() *types.Type { return t.cel }

// Kind returns the kind of the objects, or an empty value if the type is not a kind.
func (t *Type) Kind() schema.GroupVersionKind { return t.kind }

// New returns a pointer to a new Go value of the type.
func (t *Type) New() any { return reflect.New(t.of).Interface() }

// IsStruct returns whether the type has fields.
func (t *Type) IsStruct() bool { return t.form == formStruct }

// Elem returns the type of the elements of a list or map, or nil.
func (t *Type) Elem() *Type { return t.elem }

// Names returns the names of the fields of a struct in order. Do not change the result.
func (t *Type) Names() []string { return t.names }

// Field returns the field with the name, which may be escaped as in CEL.
func (t *Type) Field(name string) (*Field, bool) {
	if f, ok := t.fields[name]; ok {
		return f, true
	}
	if !strings.Contains(name, "__") {
		return nil, false
	}
	plain, ok := apiservercel.Unescape(name)
	if !ok {
		return nil, false
	}
	f, ok := t.fields[plain]
	return f, ok
}

// In returns the field of a struct of the type. It is invalid if an embedded pointer is nil.
func (f *Field) In(s reflect.Value) reflect.Value {
	for i, n := range f.index {
		if i > 0 && s.Kind() == reflect.Pointer {
			if s.IsNil() {
				return reflect.Value{}
			}
			s = s.Elem()
		}
		s = s.Field(n)
	}
	return s
}

// Make returns the field of an addressable struct of the type, and allocates embedded pointers.
func (f *Field) Make(s reflect.Value) reflect.Value {
	for i, n := range f.index {
		if i > 0 && s.Kind() == reflect.Pointer {
			if s.IsNil() {
				s.Set(reflect.New(s.Type().Elem()))
			}
			s = s.Elem()
		}
		s = s.Field(n)
	}
	return s
}

// Omitted returns whether the JSON form lacks the value of the field, or is null.
func (f *Field) Omitted(v reflect.Value) bool {
	if !v.IsValid() {
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		return v.IsNil()
	case reflect.Slice, reflect.Map, reflect.String:
		return f.omitEmpty && v.Len() == 0
	case reflect.Struct:
		if f.Type.form == formTime || f.Type.form == formMicroTime || f.omitZero {
			return v.IsZero()
		}
		return false
	default:
		return (f.omitEmpty || f.omitZero) && v.IsZero()
	}
}
