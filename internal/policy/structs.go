// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/google/cel-go/common/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kinds "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/cel/openapi"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// structs are the fields of CEL's struct types: by the name of the type, and of the field. Expressions see an object of the Kubernetes API as its JSON
// form, like those of a ValidatingAdmissionPolicy: times and quantities are strings.
type structs map[string]map[string]*types.Type

var (
	marshaler = reflect.TypeFor[json.Marshaler]()
	object    = reflect.TypeFor[client.Object]()

	// scalars are the types of Go types that encode themselves.
	scalars = map[reflect.Type]*types.Type{
		reflect.TypeFor[metav1.Time]():        types.StringType,
		reflect.TypeFor[metav1.MicroTime]():   types.StringType,
		reflect.TypeFor[metav1.Duration]():    types.StringType,
		reflect.TypeFor[resource.Quantity]():  types.StringType,
		reflect.TypeFor[intstr.IntOrString](): types.DynType,
	}
	// unset are fields that objects of the cache lack.
	unset = map[reflect.Type][]string{
		reflect.TypeFor[metav1.ObjectMeta](): {"managedFields"},
		reflect.TypeFor[corev1.NodeStatus](): {"images"},
	}
)

// goTypeOf returns the Go type of a kind of Kubernetes, or nil for other kinds.
func goTypeOf(kind kinds.GroupVersionKind) reflect.Type {
	t, ok := scheme.Scheme.AllKnownTypes()[kind]
	if !ok || kind.Version == runtime.APIVersionInternal || !reflect.PointerTo(t).Implements(object) {
		return nil
	}
	return t
}

// IsBuiltIn returns whether Kubernetes has the kind itself.
func IsBuiltIn(kind kinds.GroupVersionKind) bool { return goTypeOf(kind) != nil }

// of returns the type of the JSON form of a Go type, and adds its structs. It is nil for a type without a fixed form, such as an interface.
func (s structs) of(t reflect.Type) *types.Type {
	if t.Kind() == reflect.Pointer {
		return s.of(t.Elem())
	}
	if scalar, ok := scalars[t]; ok {
		return scalar
	}
	if t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler) {
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		return types.StringType
	case reflect.Bool:
		return types.BoolType
	case reflect.Int, reflect.Int32, reflect.Int64:
		return types.IntType
	case reflect.Float32, reflect.Float64:
		return types.DoubleType
	case reflect.Struct:
		return s.ofStruct(t)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return types.StringType
		}
		if elem := s.of(t.Elem()); elem != nil {
			return types.NewListType(elem)
		}
	case reflect.Map:
		if elem := s.of(t.Elem()); elem != nil {
			return types.NewMapType(types.StringType, elem)
		}
	default:
	}
	return nil
}

// ofStruct adds a struct before its fields, so a type may contain itself. No expression can refer to the name, because it contains a slash.
func (s structs) ofStruct(t reflect.Type) *types.Type {
	name := strings.TrimPrefix(t.PkgPath(), "k8s.io/api/") + "." + t.Name()
	if _, ok := s[name]; ok {
		return types.NewObjectType(name)
	}
	fields := map[string]*types.Type{}
	s[name] = fields
	hidden := unset[t]
	if _, ok := t.FieldByName("TypeMeta"); ok {
		hidden = []string{"apiVersion", "kind"}
	}
	empty := reflect.Zero(t)
	for field, in := range value.TypeReflectEntryOf(t).Fields() {
		if typed := s.of(in.GetFrom(empty).Type()); typed != nil && !slices.Contains(hidden, field) {
			fields[field] = typed
		}
	}
	return types.NewObjectType(name)
}

// ofSchema returns the type of unstructured values with the schema, and adds its structs with names that begin with the name. It is dyn if the schema
// allows fields that it does not describe.
func (s structs) ofSchema(name string, schema *spec.Schema, resource bool) *types.Type {
	if schema == nil {
		return types.DynType
	}
	k := openapi.Schema{Schema: schema}
	switch {
	case k.IsXIntOrString(), k.IsXPreserveUnknownFields():
		return types.DynType
	case len(schema.Type) == 0 && len(schema.AllOf) == 1:
		return s.ofSchema(name, &schema.AllOf[0], resource)
	case schema.Type.Contains("string"):
		return types.StringType
	case schema.Type.Contains("boolean"):
		return types.BoolType
	case schema.Type.Contains("integer"):
		return types.IntType
	case schema.Type.Contains("number"):
		return types.DoubleType
	case schema.Type.Contains("array") && schema.Items != nil:
		return types.NewListType(s.ofSchema(name+"[]", schema.Items.Schema, false))
	case schema.Type.Contains("object"):
		return s.ofObject(name, schema, resource || k.IsXEmbeddedResource())
	}
	return types.DynType
}

func (s structs) ofObject(name string, schema *spec.Schema, resource bool) *types.Type {
	a := schema.AdditionalProperties
	switch {
	case len(schema.Properties) == 0 && a != nil && a.Schema != nil:
		return types.NewMapType(types.StringType, s.ofSchema(name+"{}", a.Schema, false))
	case len(schema.Properties) == 0, a != nil && (a.Allows || a.Schema != nil):
		return types.DynType
	}
	fields := make(map[string]*types.Type, len(schema.Properties))
	s[name] = fields
	for field, property := range schema.Properties {
		fields[field] = s.ofSchema(name+"."+field, &property, false)
	}
	if resource {
		fields["apiVersion"], fields["kind"], fields["metadata"] = types.StringType, types.StringType, s.of(reflect.TypeFor[metav1.ObjectMeta]())
	}
	return types.NewObjectType(name)
}
