// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/prebind/prebind/binder/compact"
)

// Prebind only reads pods and nodes: the API server writes annotations and labels with the bind.
//
// +kubebuilder:rbac:groups="",resources=pods;nodes,verbs=get;list;watch

// NewManager returns a manager that serves metrics at the address; "0" serves none. Its
// cache holds pending pods, trimmed nodes, and what plugins watch, so memory does not grow
// with running pods. The context is the one that the manager will be started with.
func NewManager(ctx context.Context, config *rest.Config, metricsAddress string, r *Registry, namespace string) (manager.Manager, error) {
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 clientgoscheme.Scheme,
		Metrics:                server.Options{BindAddress: metricsAddress},
		HealthProbeBindAddress: "0", // webhook.Readiness serves probes that give a reason.
		NewCache: func(config *rest.Config, o cache.Options) (cache.Cache, error) {
			c, err := cache.New(config, o)
			return interruptible{Cache: c, stop: ctx}, err
		},
		Cache: CacheOptions(r, namespace),
	})
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	return mgr, nil
}

// CacheOptions returns those of Prebind's cache. A kind that any registered plugin narrows
// is narrowed also while the plugin is off, because it may be switched on later.
func CacheOptions(r *Registry, namespace string) cache.Options {
	narrowed := map[client.Object]cache.ByObject{
		&corev1.Pod{}:  {Field: fields.OneTermEqualSelector("spec.nodeName", ""), Transform: trimPod},
		&corev1.Node{}: {Transform: trimNode},
	}
	for _, p := range r.Plugins {
		if p.Caches != nil {
			maps.Copy(narrowed, p.Caches(namespace))
		}
	}
	return cache.Options{
		// Reading a kind that is not watched would start an informer that nothing waits
		// for, without a check of the permission.
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            cache.TransformStripManagedFields(),
		// By contract, mutators and plugins only read.
		DefaultUnsafeDisableDeepCopy: new(true),
		ByObject:                     narrowed,
		NewInformer:                  compact.NewInformer,
	}
}

// interruptible is a cache that a manager stops waiting for when it is stopped. A manager
// would wait for as long as the API server is away or a permission is missing.
type interruptible struct {
	cache.Cache
	stop context.Context //nolint:containedctx // The context of WaitForCacheSync does not end when the manager is stopped.
}

// WaitForCacheSync returns true when the caches are synced or the manager is stopped.
func (c interruptible) WaitForCacheSync(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.stop, cancel)()
	return c.Cache.WaitForCacheSync(ctx) || c.stop.Err() != nil
}

// trimNode removes the fields that use most of a node's memory. No plugin reads them.
func trimNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status.Images = nil
	}
	return object, nil
}

// maxPod is the maximum size of a pod in the cache, in bytes as the API server stores it. Usual pods are much
// smaller, and a tenant can create much larger ones.
const maxPod = 64 << 10

// trimPod hides pods that are too large for the cache. Their binds read them live.
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
