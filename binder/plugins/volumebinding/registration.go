// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/ledger"
	"github.com/prebind/prebind/binder/volumes"
)

// Registration returns the plugin's entry in the registry.
func Registration() framework.Registration {
	free := NewFreeVolumes()
	return framework.Registration{
		Name:        Name,
		On:          true,
		Description: "binds and waits for the pod's PersistentVolumeClaims",
		Watches: framework.Always(&corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}, &storagev1.StorageClass{},
			&storagev1.CSIDriver{}, &storagev1.CSIStorageCapacity{}, &storagev1.CSINode{}, &corev1.ConfigMap{}),
		Caches:   caches,
		Index:    SetupIndexes,
		Handlers: map[string]toolscache.ResourceEventHandler{"PersistentVolume": free},
		New: func(h framework.Handle, _ framework.Arguments) (framework.Plugin, error) {
			return New(h, free), nil
		},
	}
}

// caches restricts the cache as node-ready and device do.
func caches(namespace string) map[client.Object]cache.ByObject {
	all := volumes.Caches(namespace)
	maps.Copy(all, ledger.Caches(namespace))
	return all
}
