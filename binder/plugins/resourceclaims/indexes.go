// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Indexes of the cache. The cost of a list by an index does not depend on the number of
// claims, nodes and pools in the cluster.
const (
	// markedIndex contains the claims with marks, under "true".
	markedIndex = Name + "/marked"
	// heldIndex contains the claims with devices of a pool, by poolID.key.
	heldIndex = Name + "/held"
	// nodeIndex contains the ResourceSlices of a node by its name, and all others under "".
	nodeIndex = Name + "/node"
	// poolIndex contains the ResourceSlices of a pool, by poolID.key.
	poolIndex = Name + "/pool"
)

type index struct {
	field string
	of    client.Object
	keys  client.IndexerFunc
}

func claimIndexes() []index {
	return []index{
		{field: markedIndex, of: &resourcev1.ResourceClaim{}, keys: func(o client.Object) []string {
			for key := range o.GetAnnotations() {
				if strings.HasPrefix(key, markPrefix) {
					return []string{"true"}
				}
			}
			return nil
		}},
		{field: heldIndex, of: &resourcev1.ResourceClaim{}, keys: func(o client.Object) []string {
			claim, ok := o.(*resourcev1.ResourceClaim)
			if !ok {
				return nil
			}
			return keysOf(poolsOf(devicesOf(claim.Status.Allocation)))
		}},
	}
}

func sliceIndexes() []index {
	return []index{
		{field: nodeIndex, of: &resourcev1.ResourceSlice{}, keys: func(o client.Object) []string {
			slice, ok := o.(*resourcev1.ResourceSlice)
			if !ok {
				return nil
			}
			return []string{ptr.Deref(slice.Spec.NodeName, "")}
		}},
		{field: poolIndex, of: &resourcev1.ResourceSlice{}, keys: func(o client.Object) []string {
			slice, ok := o.(*resourcev1.ResourceSlice)
			if !ok {
				return nil
			}
			return []string{poolOf(slice).key()}
		}},
	}
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer, indexes []index) error {
	for _, i := range indexes {
		if err := indexer.IndexField(ctx, i.of, i.field, i.keys); err != nil {
			return fmt.Errorf("index %s: %w", i.field, err)
		}
	}
	return nil
}
