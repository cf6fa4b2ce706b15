// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/prebind/prebind/binder/framework"
)

// Source lists and watches the objects of selections. All fields are required. It is safe for concurrent use.
type Source struct {
	Config *rest.Config
	// HTTP has no timeout, which would end watches.
	HTTP   *http.Client
	Scheme *runtime.Scheme
	Mapper meta.RESTMapper
	// Discovery finds custom kinds.
	Discovery *discovery.DiscoveryClient
}

// Informer returns an informer of the selection, or an error if the API server does not serve its kind. It calls rejected
// when the API server rejects the watch because a permission is missing or the kind is gone, or after maxFailures other errors in a row, and with
// nil when the watch begins and the store has all objects.
func (s *Source) Informer(ctx context.Context, want framework.Selection, rejected func(error)) (*Informer, error) {
	lists, err := s.listerWatcher(ctx, want)
	if err != nil {
		return nil, fmt.Errorf("selection %s: %w", want.Name, err)
	}
	lists, replaced := judged(lists, rejected)
	i := newInformer(want, lists)
	i.replaced = replaced
	return i, nil
}

// maxFailures is the number of requests that fail in a row, with the backoff of the reflector in between, after which the objects count as out of
// date: some tens of seconds.
const maxFailures = 6

// listTakes is the time limit of a list. The API server ends it after 60 s.
const listTakes = 70 * time.Second

// errUnfinished is the failure of a streaming list.
var errUnfinished = errors.New("the API server ended the watch before it had sent all objects")

// rejects returns whether the API server rejects the watch, also if it is repeated.
func rejects(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// judged calls rejected with each rejection, and with nil when a watch begins: a list without a watch is not enough. After a watch that sends all
// objects first, it does so when replaced is called, because until then the objects can be those from before a rejection.
func judged(lists *toolscache.ListWatch, rejected func(error)) (list *toolscache.ListWatch, replaced func()) {
	failures, streams := 0, false
	begins := func() {
		failures, streams = 0, false
		rejected(nil)
	}
	judge := func(err error) {
		if err == nil {
			return
		}
		if failures++; rejects(err) || failures >= maxFailures {
			rejected(err)
		}
	}
	list = &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			streams = false
			ctx, cancel := context.WithTimeout(ctx, listTakes)
			defer cancel()
			list, err := lists.ListWithContext(ctx, o)
			judge(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := lists.WatchWithContext(ctx, o)
			switch {
			case err == nil && o.SendInitialEvents == nil:
				begins()
			case err == nil:
				if streams { // The reflector does not list after a stream that ends without an error.
					judge(errUnfinished)
				}
				streams = true
			case o.SendInitialEvents == nil, apierrors.IsTooManyRequests(err), utilnet.IsConnectionRefused(err):
				judge(err)
			} // After other errors of a streaming list, the reflector lists.
			return events, err
		},
	}
	return list, func() {
		if streams {
			begins()
		}
	}
}

// listerWatcher lists and watches the objects of the selection.
func (s *Source) listerWatcher(ctx context.Context, want framework.Selection) (*toolscache.ListWatch, error) {
	if _, ok := want.Example.(*metav1.PartialObjectMetadata); ok { // The cache would have no objects of this type.
		return nil, fmt.Errorf("cannot watch %T: use the type of the kind, and a Transform that keeps the metadata", want.Example)
	}
	kind, err := apiutil.GVKForObject(want.Example, s.Scheme)
	if err != nil {
		return nil, err
	}
	_, custom := want.Example.(runtime.Unstructured)
	mapping, err := s.mapping(ctx, kind, custom)
	if err != nil {
		return nil, err
	}
	switch scope := mapping.Scope.Name(); {
	case want.Scope == "" || want.Scope == scope:
	case scope == meta.RESTScopeNameRoot:
		return nil, fmt.Errorf("%s is cluster-scoped; remove namespace and namespaceExpression", kind)
	default:
		return nil, fmt.Errorf("%s is namespaced; add namespace or namespaceExpression", kind)
	}
	selects := func(o *metav1.ListOptions) {
		if want.Labels != nil {
			o.LabelSelector = want.Labels.String()
		}
		if want.Fields != nil {
			o.FieldSelector = want.Fields.String()
		}
	}
	if !custom {
		objects, err := s.typed(kind.GroupVersion())
		if err != nil {
			return nil, err
		}
		return toolscache.NewFilteredListWatchFromClient(objects, mapping.Resource.Resource, want.Namespace, selects), nil
	}
	all, err := dynamic.NewForConfigAndClient(s.Config, s.HTTP)
	if err != nil {
		return nil, err
	}
	objects := all.Resource(mapping.Resource).Namespace(want.Namespace)
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			selects(&o)
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			selects(&o)
			return objects.Watch(ctx, o)
		},
	}, nil
}

// mapping returns the resource and the scope of a kind. A custom kind can be deleted and created again with others, but the mapper keeps those that it
// has found first.
func (s *Source) mapping(ctx context.Context, kind schema.GroupVersionKind, custom bool) (*meta.RESTMapping, error) {
	if !custom {
		return s.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	list, err := s.Discovery.ServerResourcesForGroupVersionWithContext(ctx, kind.GroupVersion().String())
	switch {
	case apierrors.IsNotFound(err):
		list = &metav1.APIResourceList{}
	case err != nil:
		return nil, fmt.Errorf("discovering %s: %w", kind, err)
	}
	return restmapper.NewDiscoveryRESTMapper([]*restmapper.APIGroupResources{{
		Group:              metav1.APIGroup{Name: kind.Group, Versions: []metav1.GroupVersionForDiscovery{{Version: kind.Version}}},
		VersionedResources: map[string][]metav1.APIResource{kind.Version: list.APIResources},
	}}).RESTMapping(kind.GroupKind(), kind.Version)
}
