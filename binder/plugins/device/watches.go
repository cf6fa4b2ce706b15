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

	"github.com/prebind/prebind/binder/ledger"
)

// Caches narrows the cache to the records in the namespace.
func Caches(namespace string) map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
			namespace: {LabelSelector: labels.SelectorFromSet(labels.Set{ledger.Label: recordValue})},
		}},
	}
}

const (
	// unconfirmedIndex finds the records that may have marks, under unconfirmedKey.
	unconfirmedIndex = "device/unconfirmed"
	unconfirmedKey   = "true"
)

// SetupIndexes adds the index that the plugin needs to the cache. Call it before the cache
// is started.
func SetupIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &corev1.ConfigMap{}, unconfirmedIndex, unconfirmed); err != nil {
		return fmt.Errorf("index %s: %w", unconfirmedIndex, err)
	}
	return nil
}

// confirmedText is in every entry that is bound, and in no other entry that decode accepts:
// the other values of an entry are objects, lists and strings, and strings have their quotes
// escaped.
const confirmedText = `"bound":true`

// unconfirmed is the index function of unconfirmedIndex. The cache calls it with its lock held
// at every change of a record, so it does not decode the record. A record that it leaves out has
// no marks; a record that it finds can still have none.
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
