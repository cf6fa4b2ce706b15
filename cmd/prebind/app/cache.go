// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

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

// newManager returns a manager whose cache holds pending pods and trimmed nodes.
// Memory does not grow with running pods.
//
// The context is the one that the manager will be started with.
func newManager(ctx context.Context, config *rest.Config, o *serveOptions) (manager.Manager, error) {
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 clientgoscheme.Scheme,
		Metrics:                server.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress: "0", // See probeServer.
		NewCache: func(config *rest.Config, o cache.Options) (cache.Cache, error) {
			c, err := cache.New(config, o)
			return interruptible{Cache: c, stop: ctx}, err
		},
		Cache: cacheOptions(o.registry, o.namespace),
	})
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	return mgr, nil
}

func cacheOptions(r *registry, namespace string) cache.Options {
	return cache.Options{
		// A read of what is not watched would start another informer, which
		// nothing waits for and nobody granted the permission for.
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            cache.TransformStripManagedFields(),
		// Mutators and plugins read only, by contract.
		DefaultUnsafeDisableDeepCopy: new(true),
		ByObject:                     narrowedCaches(r, namespace),
		NewInformer:                  compact.NewInformer,
	}
}

// narrowedCaches are the kinds of which the cache does not hold everything: for
// every plugin, as any may be switched on later. None is held for that alone.
func narrowedCaches(r *registry, namespace string) map[client.Object]cache.ByObject {
	narrowed := map[client.Object]cache.ByObject{
		&corev1.Pod{}:  {Field: fields.OneTermEqualSelector("spec.nodeName", ""), Transform: trimPod},
		&corev1.Node{}: {Transform: trimNode},
	}
	for _, p := range r.plugins {
		if p.Caches != nil {
			maps.Copy(narrowed, p.Caches(namespace))
		}
	}
	return narrowed
}

// interruptible is a cache for which a manager stops waiting when it is stopped:
// by itself, it would wait for the caches first, for as long as the API server or
// a missing permission keeps them from being synced.
type interruptible struct {
	cache.Cache
	stop context.Context //nolint:containedctx // The method's own context does not end when the manager is stopped.
}

// WaitForCacheSync returns true when the caches are synced, or when it does not
// matter any more.
func (c interruptible) WaitForCacheSync(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.stop, cancel)()
	return c.Cache.WaitForCacheSync(ctx) || c.stop.Err() != nil
}

// trimNode leaves out what takes most of a node's memory and no plugin needs.
func trimNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status.Images = nil
	}
	return object, nil
}

// maxPod is how large a pod in the cache is at most, in bytes as the API server stores it: several times
// what pods have, and a small part of what a tenant can give them.
const maxPod = 64 << 10

// trimPod hides a pod that is too large for the cache. Its binds read it live.
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
