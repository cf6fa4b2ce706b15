// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Selection is a set of objects that a plugin watches in addition to the kinds of
// Registration.Watches, such as the pods of an agent on all nodes. Each selection has its own
// informer, so several can have the same kind. The plugin reads its objects by one value.
//
// A plugin lists objects through the reader of SetupBindContextExtension:
//
//	err := reader.List(ctx, &pods, agents.Where(node.Name))
//
// A call that waits decides again when an object of the selection with this value changes.
// The live reader sends the same selectors to the API server.
type Selection struct {
	// Name begins with the name of the plugin and a slash. It is unique. Two selections with
	// the same name are the same, so a name contains everything that depends on arguments.
	Name string
	// Example has the type of the objects.
	Example client.Object
	// Namespace of the objects. Empty means all namespaces.
	Namespace string
	// Labels and Fields select the objects. Nil means all objects.
	Labels labels.Selector
	Fields fields.Selector
	// Value returns the text by which the plugin reads an object, such as the name of its node; see NameOf. It is called with objects
	// after Transform. Nil means that all objects are read together, by the empty value.
	Value func(o client.Object) string
	// Transform reduces the objects of the cache. Nil means no reduction.
	Transform toolscache.TransformFunc
	// Handler receives the events of the informer, after Registration.New. It may be nil. Prebind is
	// not ready before it has received all objects.
	Handler toolscache.ResourceEventHandler
}

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

// NameOf is the Selection.Value of objects that are read by name: NAMESPACE/NAME, or NAME for cluster-scoped kinds.
func NameOf(o client.Object) string { return toolscache.MetaObjectToName(o).String() }

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

// Selector adds and removes selections while a plugin runs, for plugins whose watches depend on objects in
// the cluster. It is safe for concurrent use.
type Selector interface {
	// Select watches the selection. It returns nil when the cache has all objects. Prebind needs permission to
	// get, list and watch the kind. Errors: meta.IsNoMatchError or apierrors.IsNotFound if the API server does not serve the
	// kind, apierrors.IsForbidden if a permission is missing, otherwise the watch did not begin before the context
	// ended. A selection with the same name is kept; Select then returns the first three errors if its watch cannot
	// continue. Call it in Starter.Start or later.
	Select(ctx context.Context, s Selection) error
	// Keep ends the selections that Select added and that it has not named for a minute. Call it every few seconds.
	Keep(names sets.Set[string])
}
