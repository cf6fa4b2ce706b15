// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"reflect"
	"slices"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// scalars are the structs with a form of their own.
var scalars = map[reflect.Type]*Type{
	reflect.TypeFor[metav1.Time]():      scalar(types.TimestampType, func(t metav1.Time) ref.Val { return timestamp(t.Time) }),
	reflect.TypeFor[metav1.MicroTime](): scalar(types.TimestampType, func(t metav1.MicroTime) ref.Val { return timestamp(t.Time) }),
	reflect.TypeFor[metav1.Duration]():  scalar(types.DurationType, func(d metav1.Duration) ref.Val { return types.Duration{Duration: d.Duration} }),
	// A Quantity caches its text, but q is a copy, so the object does not change.
	reflect.TypeFor[resource.Quantity](): scalar(types.StringType, func(q resource.Quantity) ref.Val { return types.String(q.String()) }),
	reflect.TypeFor[intstr.IntOrString](): scalar(types.DynType, func(i intstr.IntOrString) ref.Val {
		if i.Type == intstr.Int {
			return types.Int(i.IntVal)
		}
		return types.String(i.StrVal)
	}),
}

func scalar[T any](cel *types.Type, convert func(T) ref.Val) *Type {
	return &Type{cel: cel, of: reflect.TypeFor[T](), convert: func(v reflect.Value) ref.Val {
		typed, _ := reflect.TypeAssert[T](v)
		return convert(typed)
	}}
}

func timestamp(t time.Time) ref.Val {
	if t.IsZero() {
		return types.NullValue
	}
	return types.Timestamp{Time: t}
}

// plain are the forms of values without a structure.
var plain = map[reflect.Kind]*Type{
	reflect.String:  {cel: types.StringType, convert: func(v reflect.Value) ref.Val { return types.String(v.String()) }},
	reflect.Bool:    {cel: types.BoolType, convert: func(v reflect.Value) ref.Val { return types.Bool(v.Bool()) }},
	reflect.Int:     integer,
	reflect.Int32:   integer,
	reflect.Int64:   integer,
	reflect.Float32: number,
	reflect.Float64: number,
}

var (
	integer = &Type{cel: types.IntType, convert: func(v reflect.Value) ref.Val { return types.Int(v.Int()) }}
	number  = &Type{cel: types.DoubleType, convert: func(v reflect.Value) ref.Val { return types.Double(v.Float()) }}
)

// Value returns the CEL value of a Go value of the type, or of a pointer to it. A nil pointer is null. The value
// refers to the Go value, which must not change while the result is in use. A value of another Go type is an
// error value.
func (t *Type) Value(o any) ref.Val {
	if o == nil {
		return types.NullValue
	}
	v := reflect.ValueOf(o)
	if of := reflect.Indirect(v); of.IsValid() && of.Type() != t.of {
		return types.NewErr("unexpected Go type %T", o)
	}
	return t.value(v)
}

// value returns the CEL value. Nil pointers are null.
func (t *Type) value(v reflect.Value) ref.Val {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return types.NullValue
		}
		v = v.Elem()
	}
	return t.convert(v)
}

// list returns the value of a slice of the type. It does not refer to the slice.
func (t *Type) list(v reflect.Value) ref.Val {
	elems := make([]ref.Val, v.Len())
	for i := range elems {
		elems[i] = t.value(v.Index(i))
	}
	return types.NewRefValList(Adapter{}, elems)
}

// mapOf returns the value of a map of the type.
func (t *Type) mapOf(v reflect.Value) ref.Val {
	if texts, ok := reflect.TypeAssert[map[string]string](v); ok {
		return sortedMap{types.NewStringStringMap(Adapter{}, texts)}
	}
	values := make(map[string]any, v.Len())
	for it := v.MapRange(); it.Next(); {
		values[it.Key().String()] = t.value(it.Value())
	}
	return sortedMap{types.NewStringInterfaceMap(Adapter{}, values)}
}

// structValue is the value of a struct. It is a map of the fields that are present.
type structValue struct {
	t *Type
	v reflect.Value
}

var _ traits.Mapper = (*structValue)(nil)

// Find implements traits.Mapper.
func (s *structValue) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), true
	}
	f, ok := s.t.Field(string(name))
	if !ok {
		return nil, false
	}
	if f.constant != "" {
		return f.constant, true
	}
	v := f.in.GetFrom(s.v)
	if f.in.CanOmit(v) {
		return nil, false
	}
	val := f.Type.value(v)
	return val, val != types.NullValue
}

// all returns the fields that are present.
func (s *structValue) all() traits.Mapper {
	values := map[string]any{}
	for name := range s.t.fields {
		if v, ok := s.Find(types.String(name)); ok {
			values[name] = v
		}
	}
	return sortedMap{types.NewStringInterfaceMap(Adapter{}, values)}
}

// Contains implements traits.Mapper.
func (s *structValue) Contains(key ref.Val) ref.Val {
	v, found := s.Find(key)
	if v != nil && types.IsUnknownOrError(v) {
		return v
	}
	return types.Bool(found)
}

// Get implements traits.Mapper.
func (s *structValue) Get(key ref.Val) ref.Val {
	if v, found := s.Find(key); found {
		return v
	}
	return types.ValOrErr(key, "no such key: %v", key)
}

// Size implements traits.Mapper.
func (s *structValue) Size() ref.Val { return s.all().Size() }

// Iterator implements traits.Mapper.
func (s *structValue) Iterator() traits.Iterator { return s.all().Iterator() }

// Equal implements ref.Val.
func (s *structValue) Equal(other ref.Val) ref.Val { return s.all().Equal(other) }

// Type implements ref.Val.
func (s *structValue) Type() ref.Type { return s.t.cel }

// Value implements ref.Val.
func (s *structValue) Value() any { return s.v.Interface() }

// ConvertToType implements ref.Val.
func (s *structValue) ConvertToType(to ref.Type) ref.Val {
	switch to {
	case types.TypeType:
		return s.t.cel
	case types.MapType:
		return s
	}
	return s.all().ConvertToType(to)
}

// ConvertToNative implements ref.Val.
func (s *structValue) ConvertToNative(to reflect.Type) (any, error) {
	return s.all().ConvertToNative(to)
}

// Adapter converts the values of unstructured objects. Maps iterate in the order of their keys.
type Adapter struct{}

var _ types.Adapter = Adapter{}

// NativeToValue implements types.Adapter.
func (a Adapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case map[string]any:
		return sortedMap{types.NewStringInterfaceMap(a, v)}
	case []any:
		return types.NewDynamicList(a, v)
	default:
		return types.DefaultTypeAdapter.NativeToValue(v)
	}
}

// sortedMap is a map that iterates in the order of its keys, which are strings.
type sortedMap struct{ traits.Mapper }

// Iterator implements traits.Mapper.
func (s sortedMap) Iterator() traits.Iterator {
	var keys []string
	for it := s.Mapper.Iterator(); it.HasNext() == types.True; {
		if key, ok := it.Next().(types.String); ok {
			keys = append(keys, string(key))
		}
	}
	slices.Sort(keys)
	return types.NewStringList(types.DefaultTypeAdapter, keys).Iterator()
}

// ConvertToType implements ref.Val.
func (s sortedMap) ConvertToType(to ref.Type) ref.Val {
	if to == types.MapType {
		return s
	}
	return s.Mapper.ConvertToType(to)
}
