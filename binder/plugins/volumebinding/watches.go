// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"errors"
	"hash/maphash"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

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
