// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// get reads one object.
func (s *Server) get(key client.ObjectKey, into client.Object) error {
	if invalid := content.IsPathSegmentName(key.Name); key.Name == "" || len(invalid) > 0 {
		return fmt.Errorf("no client sends the name %q: %v", key.Name, invalid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.objects[Kind(into)][key]
	if found == nil {
		return NotFound(Kind(into), key.Name)
	}
	return assign(found, into)
}

// list lists objects of the kind. The continue token is namespace/name of the last object of
// the page before.
func (s *Server) list(into client.ObjectList, o *client.ListOptions) error {
	kind := strings.TrimSuffix(Kind(into), "List")
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := int(o.Limit)
	if s.page > 0 && limit > 0 {
		limit = min(limit, s.page)
	}
	var items []runtime.Object
	last := ""
	into.SetContinue("")
	for _, key := range sortedKeys(s.objects[kind]) {
		object := s.objects[kind][key]
		if o.Continue != "" && !after(key, o.Continue) {
			continue
		}
		selected, err := selects(object, o)
		if err != nil {
			return err
		}
		if !selected {
			continue
		}
		if limit > 0 && len(items) == limit {
			into.SetContinue(last)
			break
		}
		last = key.String()
		if _, ok := into.(*metav1.PartialObjectMetadataList); ok {
			items = append(items, metadataOf(object))
		} else {
			items = append(items, object.DeepCopyObject())
		}
	}
	return meta.SetList(into, items)
}

// after reports whether the key comes after the one in the continue token.
func after(key client.ObjectKey, token string) bool {
	namespace, name, _ := strings.Cut(token, "/")
	return cmp.Or(cmp.Compare(key.Namespace, namespace), cmp.Compare(key.Name, name)) > 0
}

// metadataOf is what the API server sends of an object whose metadata is asked for.
func metadataOf(o client.Object) *metav1.PartialObjectMetadata {
	c := copyOf(o)
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.GetNamespace(), Name: c.GetName(), UID: c.GetUID(), ResourceVersion: c.GetResourceVersion(),
		Labels: c.GetLabels(), Annotations: c.GetAnnotations(), OwnerReferences: c.GetOwnerReferences(), Finalizers: c.GetFinalizers(),
		DeletionTimestamp: c.GetDeletionTimestamp(), CreationTimestamp: c.GetCreationTimestamp(), ManagedFields: c.GetManagedFields(),
	}}
}

// selects reports whether the object is selected.
func selects(object client.Object, o *client.ListOptions) (bool, error) {
	if o.Namespace != "" && o.Namespace != object.GetNamespace() {
		return false, nil
	}
	if o.LabelSelector != nil && !o.LabelSelector.Matches(labels.Set(object.GetLabels())) {
		return false, nil
	}
	if o.FieldSelector == nil {
		return true, nil
	}
	for _, term := range o.FieldSelector.Requirements() {
		value, known := valueOf(term.Field, object)
		if !known {
			return false, apierrors.NewBadRequest("field label not supported: " + term.Field)
		}
		if (value == term.Value) == (term.Operator == selection.NotEquals) {
			return false, nil
		}
	}
	return true, nil
}

// valueOf returns the value of a field.
func valueOf(field string, object client.Object) (value string, known bool) {
	pod, isPod := object.(*corev1.Pod)
	task, isTask := object.(*v1alpha1.BindTask)
	switch {
	case field == "metadata.name":
		return object.GetName(), true
	case isPod && field == "spec.nodeName":
		return pod.Spec.NodeName, true
	case isPod && field == "status.nominatedNodeName":
		return pod.Status.NominatedNodeName, true
	case isPod && field == "status.phase":
		return string(pod.Status.Phase), true
	case isTask && field == "spec.pod.uid":
		return string(task.Spec.Pod.UID), true
	default:
		return "", false
	}
}

// Listing is a reader that counts the objects that its lists return. It is not safe for concurrent use.
type Listing struct {
	client.Reader

	Items int
}

// List implements client.Reader.
func (l *Listing) List(ctx context.Context, into client.ObjectList, options ...client.ListOption) error {
	err := l.Reader.List(ctx, into, options...)
	l.Items += meta.LenList(into)
	return err
}
