// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
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

func addIndex(ctx context.Context, indexer client.FieldIndexer, _ framework.Arguments) error {
	return indexer.IndexField(ctx, &resourcev1.ResourceClaim{}, markedIndex, indexMarked)
}
