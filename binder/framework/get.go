// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Get reads an object into the given one and returns it, or nil if there is no such object. It
// also returns nil for an invalid name, which a client answers with an error. Its errors are
// those of this package, about the object. Objects from the cache are shared: do not change
// them.
func Get[T interface {
	client.Object
	comparable
}](ctx context.Context, reader Reader, into T, namespace, name string) (T, error) {
	var none T
	if name == "" || len(content.IsPathSegmentName(name)) > 0 {
		return none, nil
	}
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, FromAPI(Object{Kind: KindOf(into), Namespace: namespace, Name: name}, "reading it", err)
	}
	return into, nil
}
