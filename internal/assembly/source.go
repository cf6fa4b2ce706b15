// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Source lists and watches the objects of selections. It is safe for concurrent use.
type Source struct {
	client.WithWatch
	config *rest.Config
	http   *http.Client
}

// NewSource returns a source. The HTTP client, the scheme and the mapper of the options are required.
func NewSource(config *rest.Config, o client.Options) (*Source, error) {
	c, err := client.NewWithWatch(config, o)
	return &Source{WithWatch: c, config: config, http: o.HTTPClient}, err
}

// Informer returns an informer of the selection, or an error if the API server does not serve its kind. It calls rejected
// when the API server rejects the watch because a permission is missing or the kind is gone, or after maxFailures other errors in a row, and with
// nil when the watch begins.
func (s *Source) Informer(want framework.Selection, rejected func(error)) (*Informer, error) {
	lists, err := s.listerWatcher(want)
	if err != nil {
		return nil, fmt.Errorf("selection %s: %w", want.Name, err)
	}
	return newInformer(want, judged(lists, rejected)), nil
}

// maxFailures is the number of requests that fail in a row, with the backoff of the reflector in between, after which the objects count as out of
// date: some tens of seconds.
const maxFailures = 6

// rejects returns whether the API server rejects the watch, also if it is repeated.
func rejects(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// judged calls rejected with each rejection, and with nil when a watch begins: a list without a watch is not enough.
func judged(lists *toolscache.ListWatch, rejected func(error)) *toolscache.ListWatch {
	failures := 0
	judge := func(err error) {
		if err == nil {
			return
		}
		if failures++; rejects(err) || failures >= maxFailures {
			rejected(err)
		}
	}
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := lists.ListWithContext(ctx, o)
			judge(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := lists.WatchWithContext(ctx, o)
			switch {
			case err == nil:
				failures = 0
				rejected(nil)
			case o.SendInitialEvents == nil, apierrors.IsTooManyRequests(err), utilnet.IsConnectionRefused(err):
				judge(err)
			} // After other errors of a streaming list, the reflector lists.
			return events, err
		},
	}
}

// listerWatcher lists and watches the objects of the selection.
func (s *Source) listerWatcher(want framework.Selection) (*toolscache.ListWatch, error) {
	if want.Name == podKind {
		return s.pendingPods()
	}
	kind, err := s.GroupVersionKindFor(want.Example)
	if err != nil {
		return nil, err
	}
	mapping, err := s.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if want.Namespace != "" && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return nil, fmt.Errorf("%s is cluster-scoped: it has no objects in the namespace %s", kind, want.Namespace)
	}
	empty, err := s.listOf(want.Example, kind)
	if err != nil {
		return nil, err
	}
	newList := func() client.ObjectList { return empty.DeepCopyObject().(client.ObjectList) } //nolint:forcetypeassert,errcheck // A copy has the type of the original.
	options := func(o metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{
			Namespace: want.Namespace, LabelSelector: want.Labels, FieldSelector: want.Fields, Limit: o.Limit, Continue: o.Continue, Raw: &o,
		}
	}
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := newList()
			return list, s.List(ctx, list, options(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.Watch(ctx, newList(), options(o))
		},
	}, nil
}

// listOf returns an empty list of objects like the example, whose kind this is.
func (s *Source) listOf(example client.Object, kind schema.GroupVersionKind) (client.ObjectList, error) {
	kind.Kind += "List"
	switch example.(type) {
	case runtime.Unstructured:
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		return list, nil
	case *metav1.PartialObjectMetadata: // The cache would have no objects of this type.
		return nil, fmt.Errorf("cannot watch %T: use the type of the kind, and a Transform that keeps the metadata", example)
	}
	made, err := s.Scheme().New(kind)
	if list, ok := made.(client.ObjectList); ok {
		return list, nil
	}
	return nil, cmp.Or(err, fmt.Errorf("%T is not a list", made))
}
