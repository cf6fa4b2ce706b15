// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/value"

	"github.com/prebind/prebind/internal/policy"
)

// DecodeStrict decodes an object. The problems are unknown fields and, last, the first value of another type.
func DecodeStrict(object map[string]any, into any) []policy.Problem {
	unknown, err := decode(object, into)
	var all []policy.Problem
	for _, u := range unknown {
		message, path, _ := strings.Cut(u.Error(), ` "`)
		all = append(all, policy.Problem{Reason: ReasonInvalid, Field: strings.TrimSuffix(path, `"`), Message: message})
	}
	if err != nil {
		path, message := wrong(object, reflect.TypeOf(into).Elem(), err)
		all = append(all, policy.Problem{Reason: ReasonInvalid, Field: strings.TrimPrefix(path, "."), Message: message})
	}
	return all
}

// decode returns an error for each unknown field, and one for the first value of another type.
func decode(from, into any) (unknown []error, err error) {
	content, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	return kjson.UnmarshalStrict(content, into)
}

// wrong returns the path and the problem of the innermost value that does not have its type. The errors of decoders lack the index of an item, and the
// path of a type that decodes itself, such as a duration.
func wrong(from any, t reflect.Type, err error) (path, message string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	inner := func(step string, from any, t reflect.Type) bool {
		if _, err := decode(from, reflect.New(t).Interface()); err != nil {
			path, message = wrong(from, t, err)
			path = step + path
			return true
		}
		return false
	}
	switch from := from.(type) {
	case []any:
		for i, item := range from {
			if t.Kind() == reflect.Slice && inner("["+strconv.Itoa(i)+"]", item, t.Elem()) {
				return path, message
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(from)) {
			item := from[name]
			if t.Kind() == reflect.Map && inner("["+name+"]", item, t.Elem()) {
				return path, message
			}
			if t.Kind() != reflect.Struct {
				continue
			}
			if field, ok := value.TypeReflectEntryOf(t).Fields()[name]; ok && inner("."+name, item, field.GetFrom(reflect.Zero(t)).Type()) {
				return path, message
			}
		}
	}
	if t == reflect.TypeFor[metav1.Duration]() {
		return "", "must be a duration" + suchAs
	}
	typed, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return "", err.Error()
	}
	got, _, _ := strings.Cut(typed.Value, " ")
	message = "must be of type " + kindName(typed.Type) + ", got " + got
	if typed.Type.Kind() == reflect.String && (got == "number" || got == "bool") {
		message += "; quote it, because YAML reads it as something else than a text"
	}
	return "", message
}

// suchAs are examples of durations.
const suchAs = ", such as 30s or 5m"

// kindName returns the name of a type in JSON.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "object"
	case reflect.Slice:
		return "array"
	case reflect.String, reflect.Bool:
		return t.Kind().String()
	default:
		return "number"
	}
}
