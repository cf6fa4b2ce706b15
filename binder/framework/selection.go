// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Selection is a set of objects that a plugin watches in addition to the kinds of
// Registration.Watches, such as the pods of an agent on all nodes. Each selection has its own
// informer, so several can have the same kind. Its objects have one indexed field, by which the
// plugin reads them.
//
// A plugin lists objects through the reader of SetupBindContextExtension:
//
//	err := reader.List(ctx, &pods, agents.Where(node.Name))
//
// A call that waits decides again when an object of the selection with this value of the field changes.
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
	// Field is the indexed field, such as spec.nodeName of pods. ByName means the name: the value is
	// NAMESPACE/NAME, or NAME for cluster-scoped kinds. Empty means that all objects are read together, by the
	// empty value.
	Field string
	// Value returns the value of Field. It is called with objects after Transform. It is not needed if Field is ByName or empty.
	Value func(o client.Object) string
	// Transform reduces the objects of the cache. Nil means no reduction.
	Transform toolscache.TransformFunc
	// Handler receives the events of the informer, after Registration.New. It may be nil. Prebind is
	// not ready before it has received all objects.
	Handler toolscache.ResourceEventHandler
}

// Where returns the option of Reader.List for the objects whose field has the value.
func (s Selection) Where(value string) client.ListOption { return Selected{Selection: s, Value: value} }

// Check returns an error if a required field is missing.
func (s Selection) Check() error {
	if s.Name == "" || s.Example == nil || s.Indexed() && s.Value == nil {
		return fmt.Errorf("selection %q: Name and Example are required, and Value if Field is neither ByName nor empty", s.Name)
	}
	return nil
}

// Indexed returns whether the objects are read by the Value of the Field.
func (s Selection) Indexed() bool { return s.Field != ByName && s.Field != "" }

// ValueOf returns the value by which the object is read.
func (s Selection) ValueOf(o client.Object) string {
	switch s.Field {
	case "":
		return ""
	case ByName:
		return toolscache.MetaObjectToName(o).String()
	default:
		return s.Value(o)
	}
}

// Selected is the option that Selection.Where returns. A cached reader finds the selection in it.
type Selected struct {
	Selection
	Value string
}

// Filter removes the objects with other values from the list.
func (s Selected) Filter(list client.ObjectList) error {
	all, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	return meta.SetList(list, slices.DeleteFunc(all, func(o runtime.Object) bool {
		object, ok := o.(client.Object)
		return !ok || s.ValueOf(object) != s.Value
	}))
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

// ByName is the Selection.Field of selections that are read by name.
const ByName = "metadata.name"

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
