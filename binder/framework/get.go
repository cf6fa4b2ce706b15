// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Get reads an object into the given one and returns it, or nil if there is no such object. It
// also returns nil for an invalid name, which a client answers with an error. Its errors are
// those of this package, about the object. A Selection is an option. Objects from the cache are
// shared: do not change them.
func Get[T interface {
	client.Object
	comparable
}](ctx context.Context, reader Reader, into T, namespace, name string, opts ...client.GetOption) (T, error) {
	var none T
	if name == "" || len(content.IsPathSegmentName(name)) > 0 {
		return none, nil
	}
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into, append(opts, client.UnsafeDisableDeepCopy)...)
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, FromAPI(Object{Kind: KindOf(into), Namespace: namespace, Name: name}, "reading it", err)
	}
	return into, nil
}

// KindOf returns the kind of an object, or of the items of a list: the name of the Go type. For
// unstructured and metadata-only objects, it returns the object's own kind and group.
func KindOf(object runtime.Object) string {
	gvk := schema.GroupVersionKind{Kind: reflect.Indirect(reflect.ValueOf(object)).Type().Name()}
	switch gvk.Kind {
	case "Unstructured", "UnstructuredList", "PartialObjectMetadata", "PartialObjectMetadataList":
		gvk = object.GetObjectKind().GroupVersionKind()
	}
	if _, list := object.(metav1.ListInterface); list {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	return gvk.GroupKind().String()
}
