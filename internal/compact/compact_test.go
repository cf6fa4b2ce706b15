// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package compact

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

// TestNewInformer_ReadersSeeAPIObjects covers all methods that controller-runtime calls.
func TestNewInformer_ReadersSeeAPIObjects(t *testing.T) {
	const byVolume = "volume"
	i := NewInformer(&cache.ListWatch{}, &corev1.PersistentVolumeClaim{}, time.Hour, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	require.NoError(t, i.AddIndexers(cache.Indexers{byVolume: func(o any) ([]string, error) {
		claim, ok := o.(*corev1.PersistentVolumeClaim)
		require.True(t, ok, "an index function receives an API object, not a %T", o)
		return []string{claim.Spec.VolumeName}, nil
	}}))
	full, hidden := gen.Claim("full", gen.NamesVolume("v")), Hide(gen.Claim("hidden", gen.NamesVolume("v"), gen.Version("7")))
	assert.Equal(t, "7", hidden.GetObjectMeta().GetResourceVersion())
	small := Pack(gen.Claim("small"), func(m metav1.ObjectMeta) client.Object {
		return gen.Claim(m.Name, gen.NamesVolume("v"))
	})
	readers := i.GetIndexer()
	for _, o := range []any{full, small, hidden} {
		require.NoError(t, readers.Add(o))
	}
	namesOf := func(all []any, err error) []string {
		require.NoError(t, err)
		var found []string
		for _, o := range all {
			claim, ok := o.(*corev1.PersistentVolumeClaim)
			require.True(t, ok, "a reader receives an API object, not a %T", o)
			found = append(found, claim.Name)
		}
		return found
	}
	seen := []string{"full", "small"}
	assert.ElementsMatch(t, seen, namesOf(readers.List(), nil))
	assert.ElementsMatch(t, seen, namesOf(readers.ByIndex(byVolume, "v")))
	assert.ElementsMatch(t, seen, namesOf(readers.ByIndex(cache.NamespaceIndex, gen.DefaultNamespace)))
	for name, want := range map[string]bool{"full": true, "small": true, "hidden": false, "missing": false} {
		o, found, err := readers.GetByKey(gen.DefaultNamespace + "/" + name)
		require.NoError(t, err)
		assert.Equal(t, want, found, name)
		if found {
			assert.Equal(t, []string{name}, namesOf([]any{o}, nil))
		}
	}
}
