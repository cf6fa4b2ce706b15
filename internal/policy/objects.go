// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The limits of what a policy reads for a bind. More would need too much time and memory. Sizes are those that the API server stores.
const (
	// MaxObject is the size of an object that expressions use.
	MaxObject = 32 << 10
	// maxObjects is the number of objects of a resource.
	maxObjects = 1_000
	// maxSize is the size of all objects together.
	maxSize = 4 << 20
)

// MaxList is the number of objects after which a list is too long in any case.
const MaxList = maxObjects + 1

// Objects reads objects. Every error is an error of the policy. After one that is not a LimitError, the policy waits, because the next read can
// succeed.
type Objects interface {
	// Read returns the objects of the resource. If ByName is set, it returns only the one with the namespace and the name, and if ByNamespace is
	// set, only those of the namespace.
	Read(ctx context.Context, r *Resource, namespace, name string) (List, error)
}

// Claims are the pod's claims, and Namespace is the Namespace of the pod. Policies read them without a declaration.
var (
	Claims    = &Resource{Path: varClaims, Kind: corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), ByName: true}
	Namespace = &Resource{Path: varNamespace, Kind: corev1.SchemeGroupVersion.WithKind("Namespace"), ByName: true}
)

// List are objects within the limits, in the order of namespace and name.
type List struct {
	Objects []client.Object
	size    int
}

// NewList returns the objects, or a LimitError if there are too many or too large ones. It sorts the slice.
func NewList(objects []client.Object) (List, error) {
	l := List{Objects: objects}
	if len(objects) > maxObjects {
		return List{}, limit("more than %d objects; restrict them with namespace, namespaceExpression, labelSelector or onNode", maxObjects)
	}
	for _, o := range objects {
		if isTooLarge(o) {
			return List{}, limit("%s is larger than %d KiB", strings.TrimPrefix(client.ObjectKeyFromObject(o).String(), "/"), MaxObject>>10)
		}
		if l.size += sizeOf(o); l.size > maxSize {
			break // The evaluation reports it.
		}
	}
	slices.SortFunc(objects, func(a, b client.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return l, nil
}

// LimitError is an error of Objects if there are too many or too large objects: time does not help.
type LimitError struct {
	// Message describes the limit, and how to stay below it.
	Message string
}

// Error implements error.
func (e *LimitError) Error() string { return e.Message }

func limit(format string, args ...any) *LimitError {
	return &LimitError{Message: fmt.Sprintf(format, args...)}
}

// sizeOf returns the size of an object as the API server stores it, in bytes.
func sizeOf(o client.Object) int {
	switch o := o.(type) {
	case interface{ Size() int }:
		return o.Size()
	case *unstructured.Unstructured:
		return jsonSize(o.Object)
	}
	content, err := json.Marshal(o)
	if err != nil {
		return math.MaxInt
	}
	return len(content)
}

// jsonSize returns about the size of a decoded JSON value, without allocations: policies measure custom resources in each evaluation.
func jsonSize(v any) int {
	switch v := v.(type) {
	case map[string]any:
		size := len("{}")
		for key, value := range v {
			size += len(key) + len(`"":,`) + jsonSize(value)
		}
		return size
	case []any:
		size := len("[]")
		for _, value := range v {
			size += len(",") + jsonSize(value)
		}
		return size
	case string:
		return len(v) + len(`""`)
	default: // A Boolean, null, or a number.
		return len("null")
	}
}

// largeMark begins the selfLink of objects that are too large for policies. The API server does not set this field.
const largeMark = "prebind.dev/too-large/"

// Reduce returns what a cache keeps of an object for policies: all but managedFields and the images of nodes, which expressions cannot read, with
// empty lists and maps instead of null. Of an object that is too large, only the name and the node stay, with a mark. It can change the object.
func Reduce(o client.Object) client.Object {
	o.SetManagedFields(nil)
	if node, ok := o.(*corev1.Node); ok {
		node.Status.Images = nil // Their names are those of tenants.
	}
	if isLarge(o) || !isTooLarge(o) {
		fillNil(reflect.ValueOf(o))
		return o
	}
	small, _ := reflect.TypeAssert[client.Object](reflect.New(reflect.TypeOf(o).Elem())) // It has the type of the object.
	small.GetObjectKind().SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	small.SetNamespace(o.GetNamespace())
	small.SetName(o.GetName())
	small.SetUID(o.GetUID())
	small.SetResourceVersion(o.GetResourceVersion())
	node := NodeNameOf(o)
	if len(node) > validation.DNS1123SubdomainMaxLength {
		node = ""
	}
	small.SetSelfLink(largeMark + strings.Clone(node))
	return small
}

// fillNil makes the lists and maps of a Go value empty whose JSON form would be null, so that expressions can iterate over them.
func fillNil(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		fillNil(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			fillNil(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field, required := v.Field(i), !strings.Contains(v.Type().Field(i).Tag.Get("json"), "omitempty")
			switch {
			case !field.CanSet():
			case required && field.Kind() == reflect.Slice && field.IsNil():
				field.Set(reflect.MakeSlice(field.Type(), 0, 0))
			case required && field.Kind() == reflect.Map && field.IsNil():
				field.Set(reflect.MakeMap(field.Type()))
			default:
				fillNil(field)
			}
		}
	default:
	}
}

// isLarge returns whether only the name and the node of the object are known, because it is too large.
func isLarge(o client.Object) bool { return strings.HasPrefix(o.GetSelfLink(), largeMark) }

// isTooLarge returns whether policies cannot use the object. A Namespace is never too large: policies that do not select it would fail.
func isTooLarge(o client.Object) bool {
	_, is := o.(*corev1.Namespace)
	return isLarge(o) || !is && sizeOf(o) > MaxObject
}

// NodeNameOf returns spec.nodeName of an object, or an empty string.
func NodeNameOf(o client.Object) string {
	if node, large := strings.CutPrefix(o.GetSelfLink(), largeMark); large {
		return node
	}
	if pod, ok := o.(*corev1.Pod); ok {
		return pod.Spec.NodeName // Pods change often.
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return ""
	}
	name, _, _ := unstructured.NestedString(content, "spec", "nodeName")
	return name
}
