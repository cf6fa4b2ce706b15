// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Caches narrows the cache to the records in the namespace.
func Caches(namespace string) map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
			namespace: {LabelSelector: labels.SelectorFromSet(labels.Set{recordLabel: recordValue})},
		}},
	}
}

const (
	// unconfirmedIndex finds the records that may have marks, under unconfirmedKey.
	unconfirmedIndex = "device/unconfirmed"
	unconfirmedKey   = "true"
)

// SetupIndexes adds the index that the plugin needs to the cache that Options.Cached reads.
// Call it before the cache is started.
func SetupIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &corev1.ConfigMap{}, unconfirmedIndex, unconfirmed); err != nil {
		return fmt.Errorf("index %s: %w", unconfirmedIndex, err)
	}
	return nil
}

// confirmedText is in an entry that is bound, and in no other entry that decode accepts: all
// other values of an entry are objects, lists and strings, and a string has its quotes escaped.
const confirmedText = `"bound":true`

// unconfirmed is the index function of unconfirmedIndex. It runs under the lock of the cache at
// every change of a record, so it does not decode the record: a record that it leaves out has no
// marks; one that it finds may have none.
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
