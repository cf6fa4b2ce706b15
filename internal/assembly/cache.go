// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/compact"
)

// Prebind only reads pods and nodes: the API server writes annotations and labels with the bind.
//
// +kubebuilder:rbac:groups="",resources=pods;nodes,verbs=get;list;watch

// setUp creates the manager, the caches and their views.
func (a *Assembly) setUp(config *rest.Config) error {
	scheme, err := a.o.Registry.scheme()
	if err != nil {
		return err
	}
	options := CacheOptions(a.o.Registry, a.o.Namespace)
	options.DefaultWatchErrorHandler = a.denied.handle
	if a.Manager, err = ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		NewCache: func(config *rest.Config, o cache.Options) (cache.Cache, error) {
			c, err := cache.New(config, o)
			return interruptible{Cache: c, stop: a.running}, err
		},
		Cache: options,
	}); err != nil {
		return err
	}
	complete, err := a.newComplete()
	if err != nil {
		return err
	}
	viewOf := func(plugin string) *view {
		return &view{narrowed: a.GetCache(), complete: complete, completeKinds: a.o.Registry.completeKinds(plugin), selections: a.selections}
	}
	a.views[""] = viewOf("")
	for _, p := range a.o.Registry.Plugins {
		a.views[p.Name] = viewOf(p.Name)
	}
	a.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(a.GetConfig(), a.GetHTTPClient())
	return err
}

// scheme returns a scheme with the built-in types and those of all plugins.
func (r *Registry) scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	for _, p := range r.Plugins {
		if p.AddToScheme == nil {
			continue
		}
		if err := p.AddToScheme(scheme); err != nil {
			return nil, fmt.Errorf("PreBind plugin %s: adding its types: %w", p.Name, err)
		}
	}
	return scheme, nil
}

// newComplete returns the complete cache, which the manager starts.
func (a *Assembly) newComplete() (cache.Cache, error) {
	options := commonCacheOptions()
	options.HTTPClient, options.Scheme, options.Mapper = a.GetHTTPClient(), a.GetScheme(), a.GetRESTMapper()
	options.DefaultWatchErrorHandler = a.denied.handle
	c, err := cache.New(a.GetConfig(), options)
	if err != nil {
		return nil, err
	}
	complete := interruptible{Cache: c, stop: a.running}
	return complete, a.Add(complete)
}

// completeKinds returns the kinds that a plugin reads from the complete cache, because other
// plugins narrow them in Prebind's cache and the plugin itself does not. The empty name means the
// mutators.
func (r *Registry) completeKinds(plugin string) sets.Set[string] {
	kinds, own := sets.New[string](), sets.New[string]()
	for _, p := range r.Plugins {
		if p.Name == plugin {
			own = sets.KeySet(narrows(p))
		} else {
			kinds = kinds.Union(sets.KeySet(narrows(p)))
		}
	}
	return kinds.Difference(own)
}

// narrows returns the kinds that the plugin narrows, and how.
func narrows(p framework.Registration) map[string]cache.ByObject {
	kinds := map[string]cache.ByObject{}
	if p.Caches != nil {
		for example, how := range p.Caches("") {
			kinds[framework.KindOf(example)] = how
		}
	}
	return kinds
}

// view is the view of one plugin on the caches. Its methods choose between them.
type view struct {
	narrowed, complete cache.Cache
	completeKinds      sets.Set[string]
	selections         *selections
}

// of returns the cache from which the plugin reads the kind.
func (v *view) of(o runtime.Object) cache.Cache {
	if v.completeKinds.Has(framework.KindOf(o)) {
		return v.complete
	}
	return v.narrowed
}

// Get implements client.Reader.
func (v *view) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	return v.of(into).Get(ctx, key, into, opts...)
}

// List implements client.Reader.
func (v *view) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if by, ok := framework.SelectedBy(opts); ok {
		return v.selections.List(into, by, int((&client.ListOptions{}).ApplyOptions(opts).Limit))
	}
	return v.of(into).List(ctx, into, opts...)
}

// IndexField implements client.FieldIndexer.
func (v *view) IndexField(ctx context.Context, o client.Object, field string, keys client.IndexerFunc) error {
	return v.of(o).IndexField(ctx, o, field, keys)
}

// CacheOptions returns the options of Prebind's cache. If a registered plugin narrows a kind, the
// kind is narrowed even while the plugin is off. Plugins that do not narrow the kind read it from the
// complete cache.
func CacheOptions(r *Registry, namespace string) cache.Options {
	options := commonCacheOptions()
	options.ByObject = map[client.Object]cache.ByObject{
		&corev1.Pod{}:  {Field: fields.OneTermEqualSelector("spec.nodeName", ""), Transform: trimPod},
		&corev1.Node{}: {Transform: trimNode},
	}
	narrowed := sets.New[string]()
	for _, p := range r.Plugins {
		if p.Caches == nil {
			continue
		}
		for example, how := range p.Caches(namespace) {
			// Plugins that narrow a kind in the same way share its cache.
			if kind := framework.KindOf(example); !narrowed.Has(kind) {
				narrowed.Insert(kind)
				options.ByObject[example] = how
			}
		}
	}
	return options
}

// commonCacheOptions returns the options of both caches.
func commonCacheOptions() cache.Options {
	return cache.Options{
		// Reading a kind that is not watched would start an informer without a wait for its objects.
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            cache.TransformStripManagedFields(),
		// Mutators and plugins must not change objects of the cache.
		DefaultUnsafeDisableDeepCopy: new(true),
		NewInformer:                  compact.NewInformer,
	}
}

// interruptible is a cache whose synchronization a manager does not await after it is stopped.
// Otherwise, a manager waits while the API server does not answer or a permission is missing.
type interruptible struct {
	cache.Cache
	stop context.Context //nolint:containedctx // The context of WaitForCacheSync does not end when the manager is stopped.
}

// GetCache makes a manager start the cache before the runnables that read it.
func (c interruptible) GetCache() cache.Cache { return c }

// WaitForCacheSync returns true when the caches are synced or the manager is stopped.
func (c interruptible) WaitForCacheSync(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.stop, cancel)()
	return c.Cache.WaitForCacheSync(ctx) || c.stop.Err() != nil
}

// trimNode removes the fields that use most of the memory of a node. Plugins do not read them.
func trimNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status.Images = nil
	}
	return object, nil
}

// maxPod is the maximum size of a pod in the cache, in bytes as the API server stores it. Most pods are much
// smaller. A tenant can create much larger ones.
const maxPod = 64 << 10

// trimPod hides pods that are too large for the cache. Prebind reads these pods from the API server.
func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	pod.ManagedFields = nil
	if pod.Size() > maxPod {
		return compact.Hide(pod), nil
	}
	return pod, nil
}
