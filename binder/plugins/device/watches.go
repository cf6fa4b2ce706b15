// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// unconfirmedIndex contains the records that can have marks, under unconfirmedKey.
	unconfirmedIndex = "device/unconfirmed"
	unconfirmedKey   = "true"
)

// SetupIndexes adds the index of the plugin to the cache. Call it before the cache starts.
func SetupIndexes(ctx context.Context, indexer client.FieldIndexer, _ framework.Arguments) error {
	return indexer.IndexField(ctx, &corev1.ConfigMap{}, unconfirmedIndex, unconfirmed)
}

// confirmedText occurs in every bound entry, and in no other entry that decode accepts:
// their other values are objects, lists and strings, and quotes in strings are escaped.
const confirmedText = `"bound":true`

// unconfirmed is the index function of unconfirmedIndex. The cache holds a lock while it
// calls the function for each change, so the function does not decode the record. It never
// misses a record with marks, but can return one without.
func unconfirmed(o client.Object) []string {
	object, ok := o.(*corev1.ConfigMap)
	if !ok {
		return nil
	}
	for key, text := range object.Data {
		if key != nodeField && (key == lockField || !strings.Contains(text, confirmedText)) {
			return []string{unconfirmedKey}
		}
	}
	return nil
}
