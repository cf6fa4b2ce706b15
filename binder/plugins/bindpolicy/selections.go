// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
)

const (
	// byNodeName is the field of selections that are read by node.
	byNodeName = "spec.nodeName"
	// largeMark begins the selfLink of objects that are too large for policies. The API server does not set this field.
	largeMark = "prebind.dev/too-large/"
)

// reads are the selections from which a policy reads. Those that it does not need are nil. Policies that read the same objects share a selection.
type reads struct {
	claims *framework.Selection
	// resources contains the selection of each resource by its name in expressions.
	resources map[string]*framework.Selection
}

func readsOf(n policy.Needs) reads {
	r := reads{resources: make(map[string]*framework.Selection, len(n.Resources))}
	if n.Claims {
		r.claims = selectionOf(&policy.Resource{Kind: corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), ByName: true})
	}
	for _, resource := range n.Resources {
		r.resources[resource.Name] = selectionOf(resource)
	}
	return r
}

// all returns the selections by the path of the field that needs them.
func (r reads) all() map[string]*framework.Selection {
	all := map[string]*framework.Selection{}
	if r.claims != nil {
		all["claims"] = r.claims
	}
	for name, s := range r.resources {
		all["spec.resources["+name+"]"] = s
	}
	return all
}

// selectionOf returns the selection of a resource. If the name of the object is constant, the API server sends only objects with this name: one
// in each namespace.
func selectionOf(r *policy.Resource) *framework.Selection {
	s := &framework.Selection{Example: newObject(r.Kind), Namespace: r.Namespace, Labels: r.Labels, Transform: reduce}
	by := "all"
	switch {
	case r.ByName:
		by, s.Field = "by name", framework.ByName
		if r.Constant != "" {
			by, s.Fields = "with name "+r.Constant, fields.OneTermEqualSelector(framework.ByName, r.Constant)
		}
	case r.OnNode:
		by, s.Field, s.Value = "by node", byNodeName, nodeNameOf
	}
	name := []string{fmt.Sprintf("%s/%s %s %s", Name, r.Kind.GroupVersion(), r.Kind.Kind, by)}
	if r.Namespace != "" {
		name = append(name, "namespace "+r.Namespace)
	}
	if r.Labels != nil && !r.Labels.Empty() {
		name = append(name, "labels "+r.Labels.String())
	}
	s.Name = strings.Join(name, "; ")
	return s
}

// reduce is the transform of all selections. Of an object that is too large, only the name and the node stay, with a mark.
func reduce(o any) (any, error) {
	object, ok := o.(client.Object)
	if !ok {
		return o, nil
	}
	object.SetManagedFields(nil)
	if isLarge(object) || policy.SizeOf(object) <= policy.MaxObject {
		return object, nil
	}
	small := newObject(object.GetObjectKind().GroupVersionKind())
	if _, custom := object.(*unstructured.Unstructured); !custom {
		if small, ok = reflect.TypeAssert[client.Object](reflect.New(reflect.TypeOf(object).Elem())); !ok {
			return o, nil
		}
	}
	small.SetNamespace(object.GetNamespace())
	small.SetName(object.GetName())
	small.SetUID(object.GetUID())
	small.SetResourceVersion(object.GetResourceVersion())
	node := nodeNameOf(object)
	if len(node) > validation.DNS1123SubdomainMaxLength {
		node = ""
	}
	small.SetSelfLink(largeMark + strings.Clone(node))
	return small, nil
}

// isLarge returns whether only the name and the node of the object are known, because it is too large.
func isLarge(o client.Object) bool { return strings.HasPrefix(o.GetSelfLink(), largeMark) }

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
	if node, large := strings.CutPrefix(o.GetSelfLink(), largeMark); large {
		return node
	}
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
