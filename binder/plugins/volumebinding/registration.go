// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/internal/volumes"
)

// Permissions of this plugin. `make generate` writes the ClusterRole "prebind-volumebinding" from
// these markers. Operators omit the role if the plugin is disabled.
//
// The plugin patches claims (selected-node) and volumes (claimRef). It never creates or deletes them.
//
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get;list;watch;patch
//
// Classes, drivers, and capacities show whether a volume can be provisioned on the node.
//
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses;csidrivers;csistoragecapacities,verbs=get;list;watch
//
// The node's CSINode lists the in-tree plugins that were migrated to CSI.
//
// +kubebuilder:rbac:groups=storage.k8s.io,resources=csinodes,verbs=get;list;watch
//
// The reservations of ReadWriteOncePod claims are in Prebind's own namespace.
//
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=prebind-system,verbs=get;list;watch;create;update;delete
//
// The ClusterRole "prebind" grants the lists of pods for ReadWriteOncePod claims.

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

const (
	// claimRefIndex is the index of volumes by the bucket of their claim; see claimBucket.
	claimRefIndex = "volumebinding/claimRef"
	// capacityIndex is the index of capacities by class.
	capacityIndex = "volumebinding/capacity"
)

// claimBuckets is the number of values of claimRefIndex. An entry for each bound claim would need
// more memory than the claim and its volume.
const claimBuckets = 4096

// bucketSeed prevents tenants from choosing names that share a bucket.
var bucketSeed = maphash.MakeSeed()

// claimBucket returns the value of claimRefIndex for volumes that name the claim.
func claimBucket(namespace, name string) string {
	return strconv.FormatUint(maphash.String(bucketSeed, namespace+"/"+name)%claimBuckets, 10)
}

// SetupIndexes adds the indexes that the plugin needs to the cache. Call it before the cache
// starts.
func SetupIndexes(ctx context.Context, indexer client.FieldIndexer, _ framework.Arguments) error {
	return errors.Join(
		indexer.IndexField(ctx, &corev1.PersistentVolume{}, claimRefIndex, func(o client.Object) []string {
			if pv, ok := o.(*corev1.PersistentVolume); ok && pv.Spec.ClaimRef != nil {
				return []string{claimBucket(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)}
			}
			return nil
		}),
		indexer.IndexField(ctx, &storagev1.CSIStorageCapacity{}, capacityIndex, func(o client.Object) []string {
			if c, ok := o.(*storagev1.CSIStorageCapacity); ok {
				return []string{c.StorageClassName}
			}
			return nil
		}),
	)
}
