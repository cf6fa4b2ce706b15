// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy"
)

const (
	// maxObject is the maximum memory of an object in the cache, in bytes. Most objects are much smaller after they are
	// reduced to the fields that policies use. A tenant can create many that are much larger.
	maxObject = 16 << 10
	// largeMark is the selfLink of objects that are too large for the cache. The API server does not set this field.
	largeMark = "prebind.dev/too-large"
)

// reduce returns the transform of a selection. It reduces an object to the fields. If it is still too large, only
// what identifies it stays, with a mark: readers get it from the API server.
func reduce(fields *policy.Fields) toolscache.TransformFunc {
	return func(o any) (any, error) {
		o, err := fields.Transform(o)
		object, ok := o.(client.Object)
		if err != nil || !ok {
			return o, err
		}
		if object.GetManagedFields() != nil {
			object.SetManagedFields(nil)
		}
		if left := memory(reflect.ValueOf(object), maxObject); left >= 0 {
			return object, nil
		}
		return markLarge(object)
	}
}

// markLarge returns an object with only what identifies it, its node, and the mark.
func markLarge(o client.Object) (any, error) {
	reduced, err := (*policy.Fields)(nil).Transform(o)
	marked, ok := reduced.(client.Object)
	if err != nil || !ok {
		return reduced, err
	}
	marked.SetLabels(nil)
	marked.SetOwnerReferences(nil)
	marked.SetSelfLink(largeMark)
	if node := nodeNameOf(o); node == "" || len(node) > validation.DNS1123SubdomainMaxLength {
		clearSpec(marked)
	}
	return marked, nil
}

// clearSpec removes the spec.
func clearSpec(o client.Object) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		delete(u.Object, "spec")
		return
	}
	if spec := reflect.Indirect(reflect.ValueOf(o)).FieldByName("Spec"); spec.IsValid() && spec.CanSet() {
		spec.SetZero()
	}
}

// isLarge returns whether the object of the cache lacks its fields because it is too large.
func isLarge(o client.Object) bool { return o.GetSelfLink() == largeMark }

var timeType = reflect.TypeFor[time.Time]()

// memory subtracts an estimate of the memory that a value uses from the bytes that are left. It stops when the result
// is negative.
func memory(v reflect.Value, left int) int {
	if !v.IsValid() {
		return left
	}
	return references(v, left-int(v.Type().Size())) //nolint:gosec // No type is that large.
}

// references is like memory, without the size of the value itself.
func references(v reflect.Value, left int) int {
	if left < 0 {
		return left
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return memory(v.Elem(), left)
	case reflect.String:
		return left - v.Len()
	case reflect.Struct:
		if v.Type() == timeType {
			return left
		}
		for i := 0; i < v.NumField() && left >= 0; i++ {
			left = references(v.Field(i), left)
		}
	case reflect.Slice:
		left -= v.Len() * int(v.Type().Elem().Size()) //nolint:gosec // No type is that large.
		if !structured(v.Type().Elem()) {
			return left
		}
		for i := 0; i < v.Len() && left >= 0; i++ {
			left = references(v.Index(i), left)
		}
	case reflect.Map:
		for it := v.MapRange(); left >= 0 && it.Next(); {
			left = memory(it.Value(), memory(it.Key(), left))
		}
	default:
	}
	return left
}

// structured returns whether values of the type refer to other memory.
func structured(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.String, reflect.Struct, reflect.Slice, reflect.Map:
		return true
	default:
		return false
	}
}
