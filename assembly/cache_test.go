// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

func TestTrimNode(t *testing.T) {
	node := gen.Node("node-a", gen.Zone("z1"), gen.Ready(10))
	node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	got, err := trimNode(node)
	require.NoError(t, err)
	assert.Equal(t, gen.Node("node-a", gen.Zone("z1"), gen.Ready(10)), got)
	got, err = trimNode("something else")
	require.NoError(t, err)
	assert.Equal(t, "something else", got)
}

// TestIndexer: an index of a kind that the cache does not hold would fail at the first bind, and a second index of the
// same name would fail at the next change of the configuration.
func TestIndexer(t *testing.T) {
	added := 0
	i := indexer{FieldIndexer: countingIndexer{&added}, indexed: map[string]bool{}, watched: []client.Object{&corev1.ConfigMap{}}}
	require.NoError(t, i.IndexField(t.Context(), &corev1.ConfigMap{}, "a", nil))
	require.NoError(t, i.IndexField(t.Context(), &corev1.ConfigMap{}, "a", nil))
	require.NoError(t, i.IndexField(t.Context(), &corev1.Pod{}, "b", nil))
	assert.Equal(t, 2, added)
	require.EqualError(t, i.IndexField(t.Context(), &corev1.Secret{}, "c", nil), "has an index of Secret objects, and does not watch them")
}

type countingIndexer struct{ added *int }

// IndexField implements client.FieldIndexer.
func (c countingIndexer) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	*c.added++
	return nil
}
