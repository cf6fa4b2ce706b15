// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
)

// byNodeName is the field of selections that are read by node.
const byNodeName = "spec.nodeName"

// reads are the selections from which a policy reads. Those that it does not need are nil.
type reads struct {
	namespace, claims *framework.Selection
	// resources contains the selection of each resource by its name in expressions.
	resources map[string]*framework.Selection
}

// named is a selection with the path of the field that needs it.
type named struct {
	framework.Selection
	field string
}

// readsOf returns the selections for the needs of a policy.
func readsOf(n policy.Needs) reads {
	r := reads{resources: make(map[string]*framework.Selection, len(n.Resources))}
	if n.Namespace != nil {
		r.namespace = selectionOf(&policy.Resource{Kind: corev1.SchemeGroupVersion.WithKind("Namespace"), ByName: true, Fields: n.Namespace})
	}
	if n.Claims != nil {
		r.claims = selectionOf(&policy.Resource{Kind: corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), ByName: true, Fields: n.Claims})
	}
	for _, resource := range n.Resources {
		r.resources[resource.Name] = selectionOf(resource)
	}
	return r
}

// all returns the selections in a stable order.
func (r reads) all(n policy.Needs) []named {
	var all []named
	if r.namespace != nil {
		all = append(all, named{*r.namespace, "namespaceObject"})
	}
	if r.claims != nil {
		all = append(all, named{*r.claims, "claims"})
	}
	for _, resource := range n.Resources {
		all = append(all, named{*r.resources[resource.Name], "spec.resources[" + resource.Name + "]"})
	}
	return all
}

// selectionOf returns the selection of a resource. Resources that differ only in their names have the same
// selection.
func selectionOf(r *policy.Resource) *framework.Selection {
	s := &framework.Selection{Example: newObject(r.Kind), Namespace: r.Namespace, Labels: r.Labels, Transform: r.Fields.Transform}
	by := "all"
	switch {
	case r.ByName:
		by, s.Field = "by name", framework.ByName
	case r.OnNode:
		by, s.Field, s.Value, s.Unsupported = "by node", byNodeName, nodeNameOf, !selectableByNode(r.Kind)
	}
	name := []string{fmt.Sprintf("%s/%s %s %s", Name, r.Kind.GroupVersion(), r.Kind.Kind, by)}
	if r.Namespace != "" {
		name = append(name, "namespace "+r.Namespace)
	}
	if r.Labels != nil && !r.Labels.Empty() {
		name = append(name, "labels "+r.Labels.String())
	}
	if fields := r.Fields.String(); fields != "" {
		name = append(name, "fields "+fields)
	}
	s.Name = strings.Join(name, "; ")
	return s
}

// selectableByNode returns whether the API server supports spec.nodeName as a field selector of the kind.
func selectableByNode(kind schema.GroupVersionKind) bool {
	switch kind.GroupKind() {
	case schema.GroupKind{Kind: "Pod"}, schema.GroupKind{Group: "resource.k8s.io", Kind: "ResourceSlice"}:
		return true
	default:
		return false
	}
}

// isBuiltIn returns whether the kind has a Go type of k8s.io/api.
func isBuiltIn(kind schema.GroupVersionKind) bool { return scheme.Scheme.Recognizes(kind) }

// newObject returns an object of the Go type of the kind, or an unstructured one.
func newObject(kind schema.GroupVersionKind) client.Object {
	if o, err := scheme.Scheme.New(kind); err == nil {
		if object, ok := o.(client.Object); ok {
			return object
		}
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return u
}

// newList returns a list for objects like the example.
func newList(example client.Object) client.ObjectList {
	if u, ok := example.(*unstructured.Unstructured); ok {
		list := &unstructured.UnstructuredList{}
		kind := u.GroupVersionKind()
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		return list
	}
	if kinds, _, err := scheme.Scheme.ObjectKinds(example); err == nil {
		for _, kind := range kinds {
			if o, err := scheme.Scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List")); err == nil {
				if list, ok := o.(client.ObjectList); ok {
					return list
				}
			}
		}
	}
	return nil
}

// nodeNameOf returns spec.nodeName of an object, or an empty string.
func nodeNameOf(o client.Object) string {
	switch typed := o.(type) {
	case *corev1.Pod:
		return typed.Spec.NodeName
	case *unstructured.Unstructured:
		name, _, _ := unstructured.NestedString(typed.Object, strings.Split(byNodeName, ".")...)
		return name
	}
	spec := reflect.Indirect(reflect.ValueOf(o)).FieldByName("Spec")
	if spec.Kind() != reflect.Struct {
		return ""
	}
	name := spec.FieldByName("NodeName")
	if name.Kind() == reflect.Pointer && !name.IsNil() {
		name = name.Elem()
	}
	if name.Kind() != reflect.String {
		return ""
	}
	return name.String()
}
