// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Selection is a set of objects that a plugin watches in addition to the kinds of
// Registration.Watches, such as the pods of an agent on all nodes. Each selection has its own
// informer, so several can have the same kind.
//
// A plugin reads an object by its name, or lists the objects with one value, through the reader of SetupBindContextExtension:
//
//	agents := framework.Selection{ // As in Registration.Selections.
//		Name: "my-plugin/agents", Example: &corev1.Pod{}, Namespace: "agents", Labels: labels.SelectorFromSet(labels.Set{"app": "agent"}),
//		Value: func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName },
//	}
//	pod, err := framework.Get(ctx, reader, &corev1.Pod{}, "agents", name, agents)
//	err := reader.List(ctx, &pods, agents.Where(node.Name))
//
// With Namespace, a Role there suffices. A call that waits decides again when this object, or an object with this value, changes.
// The live reader sends the same selectors to the API server with a list, and ignores the selection otherwise.
type Selection struct {
	// Name begins with the name of the plugin and a slash. It is unique. Two selections with
	// the same name are the same, apart from their handlers, so a name contains everything that depends on arguments.
	Name string
	// Example has the type of the objects.
	Example client.Object
	// Namespace of the objects. Empty means all namespaces.
	Namespace string
	// Scope is the scope that the kind must have. Empty means either.
	Scope meta.RESTScopeName
	// Labels and Fields select the objects. Nil means all objects.
	Labels labels.Selector
	Fields fields.Selector
	// Value returns the text by which the plugin lists an object, such as the name of its node. It is called with objects
	// after Transform. Nil means that all objects are listed together, by the empty value.
	Value func(o client.Object) string
	// Transform reduces the objects of the cache. Nil means no reduction.
	Transform toolscache.TransformFunc
	// Handler receives the events of the informer, after Registration.New. It may be nil. It must not block, because the watch waits for
	// it. Prebind is not ready before it has received all objects. OnDelete gets the object of the cache, also if the watch missed the deletion.
	Handler toolscache.ResourceEventHandler
}

// Transform returns a Selection.Transform of objects of the type: reduce returns the object that the cache holds. It may change the object.
func Transform[T client.Object](reduce func(T) T) toolscache.TransformFunc {
	return func(o any) (any, error) {
		if object, ok := o.(T); ok {
			return reduce(object), nil
		}
		return o, nil
	}
}

// ApplyToGet implements client.GetOption. A cached reader finds the selection in it.
func (Selection) ApplyToGet(*client.GetOptions) {}

// Where returns the option of Reader.List for the objects with the value.
func (s Selection) Where(value string) client.ListOption { return Selected{Selection: s, Value: value} }

// Check returns an error if a required field is missing.
func (s Selection) Check() error {
	if s.Name == "" || s.Example == nil {
		return fmt.Errorf("selection %q: Name and Example are required", s.Name)
	}
	return nil
}

// ValueOf returns the value by which the object is read.
func (s Selection) ValueOf(o client.Object) string {
	if s.Value == nil {
		return ""
	}
	return s.Value(o)
}

// Selected is the option that Selection.Where returns. A cached reader finds the selection in it.
type Selected struct {
	Selection
	Value string
}

// ApplyToList implements client.ListOption. Only the cached reader selects by the value.
func (s Selected) ApplyToList(o *client.ListOptions) {
	o.Namespace, o.LabelSelector, o.FieldSelector = s.Namespace, s.Labels, s.Fields
}

// SelectedBy returns the Selected of the options, if there is one.
func SelectedBy(opts []client.ListOption) (Selected, bool) {
	for _, o := range opts {
		if s, ok := o.(Selected); ok {
			return s, true
		}
	}
	return Selected{}, false
}
