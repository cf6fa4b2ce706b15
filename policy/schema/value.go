// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"maps"
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

// Value returns the CEL value of a Go value of the type, or of a pointer to it. A nil pointer is null. The value
// refers to the Go value, which must not change while the result is in use. A value of another Go type is an
// error value.
func (t *Type) Value(o any) ref.Val {
	if o == nil {
		return types.NullValue
	}
	v := reflect.ValueOf(o)
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return types.NullValue
		}
		v = v.Elem()
	}
	if t.of != nil && v.Type() != t.of {
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
	switch t.form {
	case formStruct:
		return &structValue{t: t, v: v}
	case formList:
		return &listValue{t: t, v: v}
	case formMap:
		return &mapValue{t: t, v: v}
	case formString:
		return types.String(v.String())
	case formBool:
		return types.Bool(v.Bool())
	case formInt:
		return types.Int(v.Int())
	case formUint:
		return types.Int(v.Uint()) //nolint:gosec // API types have no larger numbers.
	case formDouble:
		return types.Double(v.Float())
	case formBytes:
		return types.Bytes(v.Bytes())
	case formTime:
		return timestamp(scalar[metav1.Time](v).Time)
	case formMicroTime:
		return timestamp(scalar[metav1.MicroTime](v).Time)
	case formDuration:
		return types.Duration{Duration: scalar[metav1.Duration](v).Duration}
	case formQuantity:
		return types.String(scalar[resource.Quantity](v).String())
	case formIntOrString:
		i := scalar[intstr.IntOrString](v)
		if i.Type == intstr.Int {
			return types.Int(i.IntVal)
		}
		return types.String(i.StrVal)
	default:
		return types.NewErr("unexpected form of %v", v.Type())
	}
}

func timestamp(t time.Time) ref.Val {
	if t.IsZero() {
		return types.NullValue
	}
	return types.Timestamp{Time: t}
}

// scalar returns a copy of the value, so that methods cannot change the object: a Quantity caches its text.
func scalar[T any](v reflect.Value) *T {
	if v.CanAddr() {
		if p, ok := reflect.TypeAssert[*T](v.Addr()); ok {
			c := *p
			return &c
		}
	}
	c, _ := reflect.TypeAssert[T](v)
	return &c
}

// structValue is the value of a struct. It is a map of the fields that are present.
type structValue struct {
	t *Type
	v reflect.Value
}

var _ traits.Mapper = (*structValue)(nil)
var _ traits.FieldTester = (*structValue)(nil)

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
		return types.String(f.constant), true
	}
	v := f.In(s.v)
	if f.Omitted(v) {
		return nil, false
	}
	val := f.Type.value(v)
	return val, val != types.NullValue
}

// IsSet implements traits.FieldTester.
func (s *structValue) IsSet(key ref.Val) ref.Val { return contains(s, key) }

// Contains implements traits.Mapper.
func (s *structValue) Contains(key ref.Val) ref.Val { return contains(s, key) }

// Get implements traits.Mapper.
func (s *structValue) Get(key ref.Val) ref.Val { return get(s, key) }

// Size implements traits.Mapper.
func (s *structValue) Size() ref.Val { return types.Int(len(s.present())) }

// Iterator implements traits.Mapper.
func (s *structValue) Iterator() traits.Iterator { return over(s.present()) }

func (s *structValue) present() []string {
	var names []string
	for _, name := range s.t.names {
		if f := s.t.fields[name]; f.constant != "" || !f.Omitted(f.In(s.v)) {
			names = append(names, name)
		}
	}
	return names
}

// Equal implements ref.Val.
func (s *structValue) Equal(other ref.Val) ref.Val { return equal(s, other) }

// Type implements ref.Val.
func (s *structValue) Type() ref.Type { return s.t.cel }

// Value implements ref.Val.
func (s *structValue) Value() any { return s.v.Interface() }

// ConvertToType implements ref.Val.
func (s *structValue) ConvertToType(to ref.Type) ref.Val {
	switch {
	case to == types.TypeType:
		return s.t.cel
	case to.TypeName() == s.t.cel.TypeName(), to == types.MapType:
		return s
	}
	return types.NewErr("type conversion error from %s to %s", s.t.cel.TypeName(), to.TypeName())
}

// ConvertToNative implements ref.Val.
func (s *structValue) ConvertToNative(to reflect.Type) (any, error) {
	if s.t.of.AssignableTo(to) {
		return s.v.Interface(), nil
	}
	return nil, fmt.Errorf("type conversion error from %s to %v", s.t.cel.TypeName(), to)
}

// listValue is the value of a slice.
type listValue struct {
	t *Type
	v reflect.Value
}

var _ traits.Lister = (*listValue)(nil)

func (l *listValue) at(i int) ref.Val { return l.t.elem.value(l.v.Index(i)) }

// copied returns a list of CEL's own, which does not refer to the slice.
func (l *listValue) copied() traits.Lister {
	elems := make([]ref.Val, l.v.Len())
	for i := range elems {
		elems[i] = l.at(i)
	}
	return types.NewRefValList(types.DefaultTypeAdapter, elems)
}

// Add implements traits.Lister.
func (l *listValue) Add(other ref.Val) ref.Val {
	if _, ok := other.(traits.Lister); !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	if adder, ok := l.copied().(traits.Adder); ok {
		return adder.Add(other)
	}
	return types.MaybeNoSuchOverloadErr(other)
}

// Contains implements traits.Lister.
func (l *listValue) Contains(val ref.Val) ref.Val {
	if types.IsUnknownOrError(val) {
		return val
	}
	for i := range l.v.Len() {
		if l.at(i).Equal(val) == types.True {
			return types.True
		}
	}
	return types.False
}

// Get implements traits.Lister.
func (l *listValue) Get(index ref.Val) ref.Val {
	i, err := types.IndexOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	if i < 0 || i >= l.v.Len() {
		return types.NewErr("index out of bounds: %d", i)
	}
	return l.at(i)
}

// Size implements traits.Lister.
func (l *listValue) Size() ref.Val { return types.Int(l.v.Len()) }

// Iterator implements traits.Lister.
func (l *listValue) Iterator() traits.Iterator { return &listIterator{l: l} }

// Equal implements ref.Val.
func (l *listValue) Equal(other ref.Val) ref.Val {
	o, ok := other.(traits.Lister)
	if !ok || l.Size() != o.Size() {
		return types.False
	}
	for i := range l.v.Len() {
		if l.at(i).Equal(o.Get(types.Int(i))) != types.True {
			return types.False
		}
	}
	return types.True
}

// Type implements ref.Val.
func (l *listValue) Type() ref.Type { return types.ListType }

// Value implements ref.Val.
func (l *listValue) Value() any { return l.v.Interface() }

// ConvertToType implements ref.Val.
func (l *listValue) ConvertToType(to ref.Type) ref.Val {
	switch to {
	case types.ListType:
		return l
	case types.TypeType:
		return types.ListType
	}
	return types.NewErr("type conversion error from list to %s", to.TypeName())
}

// ConvertToNative implements ref.Val.
func (l *listValue) ConvertToNative(to reflect.Type) (any, error) {
	return l.copied().ConvertToNative(to)
}

// mapValue is the value of a map whose keys are strings.
type mapValue struct {
	t *Type
	v reflect.Value
}

var _ traits.Mapper = (*mapValue)(nil)

// Find implements traits.Mapper.
func (m *mapValue) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), true
	}
	if plain, ok := reflect.TypeAssert[map[string]string](m.v); ok {
		s, found := plain[string(name)]
		return types.String(s), found
	}
	v := m.v.MapIndex(reflect.ValueOf(string(name)).Convert(m.t.of.Key()))
	if !v.IsValid() {
		return nil, false
	}
	return m.t.elem.value(v), true
}

// Contains implements traits.Mapper.
func (m *mapValue) Contains(key ref.Val) ref.Val { return contains(m, key) }

// Get implements traits.Mapper.
func (m *mapValue) Get(key ref.Val) ref.Val { return get(m, key) }

// Size implements traits.Mapper.
func (m *mapValue) Size() ref.Val { return types.Int(m.v.Len()) }

// Iterator implements traits.Mapper.
func (m *mapValue) Iterator() traits.Iterator {
	keys := make([]string, 0, m.v.Len())
	for it := m.v.MapRange(); it.Next(); {
		keys = append(keys, it.Key().String())
	}
	slices.Sort(keys)
	return over(keys)
}

// Equal implements ref.Val.
func (m *mapValue) Equal(other ref.Val) ref.Val { return equal(m, other) }

// Type implements ref.Val.
func (m *mapValue) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (m *mapValue) Value() any { return m.v.Interface() }

// ConvertToType implements ref.Val.
func (m *mapValue) ConvertToType(to ref.Type) ref.Val {
	switch to {
	case types.MapType:
		return m
	case types.TypeType:
		return types.MapType
	}
	return types.NewErr("type conversion error from map to %s", to.TypeName())
}

// ConvertToNative implements ref.Val.
func (m *mapValue) ConvertToNative(to reflect.Type) (any, error) {
	if m.t.of.AssignableTo(to) {
		return m.v.Interface(), nil
	}
	return nil, fmt.Errorf("type conversion error from map to %v", to)
}

// Adapter converts the values of unstructured objects. Maps iterate in the order of their keys.
type Adapter struct{}

var _ types.Adapter = Adapter{}

// NativeToValue implements types.Adapter.
func (a Adapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case map[string]any:
		return &sortedMap{Mapper: types.NewStringInterfaceMap(a, v), m: v}
	case []any:
		return types.NewDynamicList(a, v)
	default:
		return types.DefaultTypeAdapter.NativeToValue(v)
	}
}

// sortedMap is a map of an unstructured object.
type sortedMap struct {
	traits.Mapper
	m map[string]any
}

// Iterator implements traits.Mapper.
func (s *sortedMap) Iterator() traits.Iterator { return over(slices.Sorted(maps.Keys(s.m))) }

// ConvertToType implements ref.Val.
func (s *sortedMap) ConvertToType(to ref.Type) ref.Val {
	if to == types.MapType {
		return s
	}
	return s.Mapper.ConvertToType(to)
}

func contains(m traits.Mapper, key ref.Val) ref.Val {
	v, found := m.Find(key)
	if v != nil && types.IsUnknownOrError(v) {
		return v
	}
	return types.Bool(found)
}

func get(m traits.Mapper, key ref.Val) ref.Val {
	if v, found := m.Find(key); found {
		return v
	}
	return types.ValOrErr(key, "no such key: %v", key)
}

// equal compares two maps or structs by their present entries.
func equal(m traits.Mapper, other ref.Val) ref.Val {
	o, ok := other.(traits.Mapper)
	if !ok || m.Size() != o.Size() {
		return types.False
	}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		mine, _ := m.Find(key)
		theirs, found := o.Find(key)
		if !found || mine == nil || mine.Equal(theirs) != types.True {
			return types.False
		}
	}
	return types.True
}

// iterator is what iterators share.
type iterator struct{}

// ConvertToNative implements ref.Val.
func (iterator) ConvertToNative(to reflect.Type) (any, error) {
	return nil, fmt.Errorf("type conversion error from iterator to %v", to)
}

// ConvertToType implements ref.Val.
func (iterator) ConvertToType(to ref.Type) ref.Val {
	return types.NewErr("type conversion error from iterator to %s", to.TypeName())
}

// Equal implements ref.Val.
func (iterator) Equal(other ref.Val) ref.Val { return types.MaybeNoSuchOverloadErr(other) }

// Type implements ref.Val.
func (iterator) Type() ref.Type { return types.IteratorType }

// Value implements ref.Val.
func (iterator) Value() any { return nil }

type listIterator struct {
	iterator
	l    *listValue
	next int
}

// HasNext implements traits.Iterator.
func (it *listIterator) HasNext() ref.Val { return types.Bool(it.next < it.l.v.Len()) }

// Next implements traits.Iterator.
func (it *listIterator) Next() ref.Val {
	if it.next >= it.l.v.Len() {
		return nil
	}
	it.next++
	return it.l.at(it.next - 1)
}

type keyIterator struct {
	iterator
	keys []string
}

func over(keys []string) traits.Iterator { return &keyIterator{keys: keys} }

// HasNext implements traits.Iterator.
func (it *keyIterator) HasNext() ref.Val { return types.Bool(len(it.keys) > 0) }

// Next implements traits.Iterator.
func (it *keyIterator) Next() ref.Val {
	if len(it.keys) == 0 {
		return nil
	}
	key := it.keys[0]
	it.keys = it.keys[1:]
	return types.String(key)
}
