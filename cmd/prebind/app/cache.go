// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/prebind/prebind/binder/notify"
)

// newManager returns a manager whose cache holds pending pods and trimmed nodes.
// Memory does not grow with running pods.
func newManager(config *rest.Config, o *serveOptions) (manager.Manager, error) {
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 clientgoscheme.Scheme,
		Metrics:                server.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress: o.healthAddress,
		Cache: cache.Options{
			// A read of what is not watched would start another informer, which
			// nothing waits for and nobody granted the permission for.
			ReaderFailOnMissingInformer: true,
			DefaultTransform:            cache.TransformStripManagedFields(),
			// Mutators and plugins read only, by contract.
			DefaultUnsafeDisableDeepCopy: ptr.To(true),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}:  {Field: fields.OneTermEqualSelector("spec.nodeName", "")},
				&corev1.Node{}: {Transform: trimNode},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	return mgr, nil
}

// trimNode leaves out what takes most of a node's memory and no plugin needs.
func trimNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status.Images = nil
	}
	return object, nil
}

// coreWatches are the kinds that the engine itself needs.
func coreWatches() map[string]client.Object {
	return map[string]client.Object{"Pod": &corev1.Pod{}, "Node": &corev1.Node{}}
}

// watch makes the cache hold the kinds, readiness wait for them, and the hub
// hear of their changes.
func watch(ctx context.Context, mgr manager.Manager, ready *readiness, changes *notify.Hub, kinds map[string]client.Object) error {
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		informer, err := mgr.GetCache().GetInformer(ctx, kinds[kind])
		if err != nil {
			return fmt.Errorf("watching %s objects: %w", kind, err)
		}
		if err := changes.Attach(kind, informer); err != nil {
			return err
		}
		ready.waitFor(kind, informer.HasSynced)
	}
	return nil
}
