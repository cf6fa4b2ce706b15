// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// mismatch is a value that does not have the type of its field.
type mismatch struct{ path, message string }

// decoders are the types with a format of their own, with a description.
var decoders = map[reflect.Type]string{
	reflect.TypeFor[metav1.Duration]():    "a duration such as 90s",
	reflect.TypeFor[metav1.Time]():        "a time such as 2026-01-01T00:00:00Z",
	reflect.TypeFor[metav1.MicroTime]():   "a time such as 2026-01-01T00:00:00.000000Z",
	reflect.TypeFor[resource.Quantity]():  "a quantity such as 500m",
	reflect.TypeFor[intstr.IntOrString](): "an integer or a string",
}

// mismatches compares a JSON value with a Go type. Null fits any type. It reports unknown fields, too.
func mismatches(path string, t reflect.Type, value any) []mismatch {
	must := func(be string) []mismatch {
		return []mismatch{{path, fmt.Sprintf("must be %s, got %s", be, describeValue(value))}}
	}
	if value == nil {
		return nil
	}
	if _, ok := reflect.TypeAssert[json.Unmarshaler](reflect.New(t)); ok {
		if description, ok := decoders[t]; ok && !decodes(t, value) {
			return must(description)
		}
		return nil // The decoder reports errors of other types.
	}
	switch t.Kind() {
	case reflect.Pointer:
		return mismatches(path, t.Elem(), value)
	case reflect.Struct:
		object, ok := value.(map[string]any)
		if !ok {
			return must("an object")
		}
		return fieldMismatches(path, t, object)
	case reflect.Map:
		object, ok := value.(map[string]any)
		if !ok {
			return must("an object")
		}
		var all []mismatch
		for _, key := range slices.Sorted(maps.Keys(object)) {
			all = append(all, mismatches(path+"["+key+"]", t.Elem(), object[key])...)
		}
		return all
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return mismatches(path, reflect.TypeFor[string](), value)
		}
		list, ok := value.([]any)
		if !ok {
			return must("a list")
		}
		var all []mismatch
		for i, item := range list {
			all = append(all, mismatches(fmt.Sprintf("%s[%d]", path, i), t.Elem(), item)...)
		}
		return all
	case reflect.String:
		switch value.(type) {
		case string:
		case bool, int64, float64:
			return []mismatch{{path, fmt.Sprintf("must be a string, got %v; quote it", value)}}
		default:
			return must("a string")
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			return must("true or false")
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		if _, ok := value.(int64); !ok {
			return must("an integer")
		}
	default: // Any value, and types that the API rarely uses: the decoder reports errors.
	}
	return nil
}

// fieldMismatches compares an object with a struct.
func fieldMismatches(path string, t reflect.Type, object map[string]any) []mismatch {
	fields := map[string]reflect.Type{}
	addFields(fields, t)
	var all []mismatch
	for _, name := range slices.Sorted(maps.Keys(object)) {
		at := strings.TrimPrefix(path+"."+name, ".")
		if field, ok := fields[name]; ok {
			all = append(all, mismatches(at, field, object[name])...)
		} else {
			all = append(all, mismatch{at, "unknown field"})
		}
	}
	return all
}

// addFields adds the types of the fields by their JSON names.
func addFields(to map[string]reflect.Type, t reflect.Type) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.Anonymous:
			addFields(to, f.Type)
		case name != "" && name != "-":
			to[name] = f.Type
		}
	}
}

// decodes returns whether a type can decode the value.
func decodes(t reflect.Type, value any) bool {
	encoded, err := json.Marshal(value)
	return err == nil && json.Unmarshal(encoded, reflect.New(t).Interface()) == nil
}

// describeValue returns a JSON value for a message.
func describeValue(value any) string {
	switch v := value.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("%q", v)
	default:
		return fmt.Sprint(v)
	}
}
