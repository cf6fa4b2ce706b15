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
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// mismatch is a value that does not have the type of its field.
type mismatch struct{ path, message string }

// formats describe types with a format of their own, and forms the others.
var (
	formats = map[reflect.Type]string{
		reflect.TypeFor[metav1.Duration]():    "a duration such as 90s",
		reflect.TypeFor[metav1.Time]():        "a time such as 2026-01-01T00:00:00Z",
		reflect.TypeFor[metav1.MicroTime]():   "a time such as 2026-01-01T00:00:00.000000Z",
		reflect.TypeFor[resource.Quantity]():  "a quantity such as 500m",
		reflect.TypeFor[intstr.IntOrString](): "an integer or a string",
	}
	forms = map[reflect.Kind]string{
		reflect.Struct: "an object", reflect.Map: "an object", reflect.Slice: "a list", reflect.String: "a string", reflect.Bool: "true or false",
		reflect.Int: "an integer", reflect.Int32: "an integer", reflect.Int64: "an integer",
	}
)

// mismatches compares a JSON value with a Go type. Null fits any type. It reports unknown fields, too.
func mismatches(path string, t reflect.Type, v any) (all []mismatch) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	in := func(path string, t reflect.Type, v any) { all = append(all, mismatches(path, t, v)...) }
	object, isObject := v.(map[string]any)
	list, isList := v.([]any)
	_, decodesItself := reflect.TypeAssert[json.Unmarshaler](reflect.New(t))
	switch kind := t.Kind(); {
	case v == nil || kind == reflect.Interface:
	case isObject && kind == reflect.Struct && !decodesItself:
		fields := value.TypeReflectEntryOf(t).Fields()
		for _, name := range slices.Sorted(maps.Keys(object)) {
			at := strings.TrimPrefix(path+"."+name, ".")
			if f, ok := fields[name]; ok {
				in(at, f.GetFrom(reflect.Zero(t)).Type(), object[name])
			} else {
				all = append(all, mismatch{at, "unknown field"})
			}
		}
	case isObject && kind == reflect.Map:
		for _, key := range slices.Sorted(maps.Keys(object)) {
			in(path+"["+key+"]", t.Elem(), object[key])
		}
	case isList && kind == reflect.Slice:
		for i, item := range list {
			in(fmt.Sprintf("%s[%d]", path, i), t.Elem(), item)
		}
	case !decodes(t, v):
		all = append(all, mismatch{path, must(t, v)})
	}
	return all
}

// decodes returns whether a type can decode the value.
func decodes(t reflect.Type, v any) bool {
	encoded, err := json.Marshal(v)
	return err == nil && json.Unmarshal(encoded, reflect.New(t).Interface()) == nil
}

// must returns why the type cannot decode the value.
func must(t reflect.Type, v any) string {
	be, ok := formats[t]
	if !ok {
		be, ok = forms[t.Kind()]
	}
	if !ok {
		be = "a valid " + t.Name()
	}
	got, quote := fmt.Sprint(v), "; quote it"
	switch text := v.(type) {
	case map[string]any:
		got, quote = "an object", ""
	case []any:
		got, quote = "a list", ""
	case string:
		got = fmt.Sprintf("%q", text)
	}
	if t.Kind() != reflect.String {
		quote = ""
	}
	return "must be " + be + ", got " + got + quote
}
