// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Ref refers to an object, or to all objects of a kind, whose changes wake a wait. RefTo and
// AllOf create it from a Go type, so that the kind exists. Refs are comparable.
//
// Selection.Changed returns a Ref to the objects of a selection with one value of its field.
type Ref struct {
	kind, namespace, name string
	// selection is the name of a Selection, or empty. If it is set, name is the value of the
	// selection's field.
	selection string
}

// RefTo returns the reference to an object with the type of the example, such as
// &corev1.Node{}. The namespace is empty for cluster-scoped objects.
func RefTo(example client.Object, namespace, name string) Ref {
	return Ref{kind: KindOf(example), namespace: namespace, name: name}
}

// AllOf returns the reference to all objects with the type of the example in the namespace, or
// in all namespaces if it is empty.
func AllOf(example client.Object, namespace string) Ref {
	return Ref{kind: KindOf(example), namespace: namespace}
}

// AllOfList is AllOf with the type of the items of the list.
func AllOfList(list client.ObjectList, namespace string) Ref {
	return Ref{kind: KindOf(list), namespace: namespace}
}

// AllBinds is the reference of every call that waits. A plugin that keeps what it decides with in memory, such as
// rules, reports its change with Hub.Changed.
func AllBinds() Ref { return Ref{kind: "Binding"} }

// Object returns the reference for errors and messages.
func (r Ref) Object() Object { return Object{Kind: r.kind, Namespace: r.namespace, Name: r.name} }

// String returns the string of the Object.
func (r Ref) String() string { return r.Object().String() }

// KindOf returns the kind of an object, or of the items of a list: the name of the Go type. For
// unstructured and metadata-only objects, it returns the object's own kind and group.
func KindOf(object runtime.Object) string {
	name := reflect.Indirect(reflect.ValueOf(object)).Type().Name()
	switch name {
	case "Unstructured", "UnstructuredList", "PartialObjectMetadata", "PartialObjectMetadataList":
		gvk := object.GetObjectKind().GroupVersionKind()
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
		return gvk.GroupKind().String()
	default:
		return strings.TrimSuffix(name, "List")
	}
}
