// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
)

// selectionOf returns the selection of a resource. If the name of the object is constant, the API server sends only objects with this name: one
// in each namespace.
func selectionOf(r *policy.Resource) *framework.Selection {
	s := &framework.Selection{
		Example: typed[client.Object](r.Kind, &unstructured.Unstructured{}), Namespace: r.Namespace, Labels: r.Labels, Transform: framework.Transform(policy.Reduce),
	}
	by := "all"
	switch {
	case r.ByName:
		by, s.Value = "by name", nameOf
		if r.Constant != "" {
			// Quoted, it is not like another part of the name.
			by, s.Fields = "with name "+strconv.Quote(r.Constant), fields.OneTermEqualSelector(metav1.ObjectNameField, r.Constant)
		}
	case r.ByNamespace && r.OnNode:
		by, s.Value = "by namespace and node", func(o client.Object) string { return o.GetNamespace() + "/" + policy.NodeNameOf(o) }
	case r.ByNamespace:
		by, s.Value = "by namespace", client.Object.GetNamespace
	case r.OnNode:
		by, s.Value = "by node", policy.NodeNameOf
	}
	name := []string{fmt.Sprintf("%s/%s %s %s", Name, r.Kind.GroupVersion(), r.Kind.Kind, by)}
	switch { // The compiler knows the scope of kinds that are built in.
	case policy.IsBuiltIn(r.Kind):
	case r.InNamespace:
		s.Scope = meta.RESTScopeNameNamespace
		name = append(name, "namespaced")
	case r.ByName:
		s.Scope = meta.RESTScopeNameRoot
		name = append(name, "cluster-scoped")
	}
	if r.Namespace != "" {
		name = append(name, "namespace "+r.Namespace)
	}
	if r.Labels != nil && !r.Labels.Empty() {
		name = append(name, "labels "+r.Labels.String())
	}
	s.Name = strings.Join(name, "; ")
	return s
}

// nameOf returns the value of objects that are read by name: NAMESPACE/NAME, or NAME for cluster-scoped kinds.
func nameOf(o client.Object) string { return toolscache.MetaObjectToName(o).String() }

// typed returns an object or list of the Go type of the kind. For a kind without one, it returns the custom object or list, with the kind.
func typed[T runtime.Object](kind schema.GroupVersionKind, custom T) T {
	built, _ := scheme.Scheme.New(kind)
	o, ok := built.(T)
	if !ok {
		o = custom
	}
	o.GetObjectKind().SetGroupVersionKind(kind)
	return o
}
