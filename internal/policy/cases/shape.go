// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// mismatch is a value that does not have the type of its field.
type mismatch struct{ path, message string }

// forms are the kinds that have another name in JSON.
var forms = map[reflect.Kind]string{reflect.Struct: "object", reflect.Map: "object", reflect.Slice: "list"}

// mismatches compares a JSON value with a Go type. Null fits any type. It reports unknown fields, too. A decoder would report
// only the first mismatch, and often without its path.
func mismatches(path string, t reflect.Type, v any) (all []mismatch) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	in := func(path string, t reflect.Type, v any) { all = append(all, mismatches(path, t, v)...) }
	object, isObject := v.(map[string]any)
	list, isList := v.([]any)
	_, decodesItself := reflect.TypeAssert[json.Unmarshaler](reflect.New(t))
	switch kind := t.Kind(); {
	case v == nil:
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
	default:
		if err := decodes(t, v); err != nil {
			all = append(all, mismatch{path, err.Error()})
		}
	}
	return all
}

// decodes returns why the type cannot decode the value, or nil.
func decodes(t reflect.Type, v any) error {
	encoded, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(encoded, reflect.New(t).Interface())
	}
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok:
		return err
	case t.Kind() == reflect.String:
		return fmt.Errorf("must be a string, got %s; quote it", encoded)
	}
	kind := wrong.Type.Kind()
	return fmt.Errorf("must be of type %s, got %s", cmp.Or(forms[kind], kind.String()), encoded)
}
