// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The indexes of the cache. A list by one of them finds few objects, however
// many volumes there are.
const (
	// claimRefIndex finds the volumes that name a claim, and some more; see claimBucket.
	claimRefIndex = "volumebinding/claimRef"
	// capacityIndex finds the capacities of a class.
	capacityIndex = "volumebinding/capacity"
)

// claimBuckets is how many values the claimRefIndex has. An entry of its own for each bound claim
// would take more memory than the claim and its volume.
const claimBuckets = 4096

// bucketSeed keeps tenants from choosing names that share a bucket.
var bucketSeed = maphash.MakeSeed()

// claimBucket is the value of the claimRefIndex under which the volumes are that name the claim.
func claimBucket(namespace, name string) string {
	return strconv.FormatUint(maphash.String(bucketSeed, namespace+"/"+name)%claimBuckets, 10)
}

// index is one of them, and the kind that it is about.
type index struct {
	field string
	of    client.Object
	keys  client.IndexerFunc
}

func indexes() []index {
	return []index{
		{field: claimRefIndex, of: &corev1.PersistentVolume{}, keys: func(o client.Object) []string {
			pv, ok := o.(*corev1.PersistentVolume)
			if !ok || pv.Spec.ClaimRef == nil {
				return nil
			}
			return []string{claimBucket(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)}
		}},
		{field: capacityIndex, of: &storagev1.CSIStorageCapacity{}, keys: func(o client.Object) []string {
			c, ok := o.(*storagev1.CSIStorageCapacity)
			if !ok {
				return nil
			}
			return []string{c.StorageClassName}
		}},
	}
}

// SetupIndexes adds the indexes that the plugin needs to the cache. Call it before the
// cache is started.
func SetupIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, i := range indexes() {
		if err := indexer.IndexField(ctx, i.of, i.field, i.keys); err != nil {
			return fmt.Errorf("index %s: %w", i.field, err)
		}
	}
	return nil
}
