// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// markedIndex is an index of the cache. It contains the claims with marks, under "true". The
// cost of a list by the index does not depend on the number of claims in the cluster.
const markedIndex = Name + "/marked"

// indexMarked is the index function of markedIndex.
func indexMarked(o client.Object) []string {
	for key := range o.GetAnnotations() {
		if strings.HasPrefix(key, markPrefix) {
			return []string{"true"}
		}
	}
	return nil
}

func addIndex(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &resourcev1.ResourceClaim{}, markedIndex, indexMarked); err != nil {
		return fmt.Errorf("index %s: %w", markedIndex, err)
	}
	return nil
}
