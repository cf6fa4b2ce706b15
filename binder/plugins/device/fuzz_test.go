// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
)

// FuzzDecode checks that a ConfigMap is either decoded completely, or rejected with an error
// that names the key.
func FuzzDecode(f *testing.F) {
	r := of(map[types.UID]*entry{"p": grants(grant{"a", half}, grant{"b", two})})
	r.take(podNamed("p"), "a", noon)
	data, err := r.Encode()
	require.NoError(f, err)
	f.Add("p", data["p"], lockField, data[lockField])
	f.Add("p", `{"pod":"a/b","bound":true,"grants":[{"attempt":"","devices":{"gpu":{"G":"1"}}}]}`, "q", "null")
	f.Add("p", `{"pod":"a/b","grants":[{"attempt":"a","devices":{"gpu":{"G":"1","\u0047":"1"}}}]}`, lockField, "{}")
	f.Add(nodeField, "node-b", "p", "[]")
	f.Fuzz(func(t *testing.T, key1, text1, key2, text2 string) {
		data := map[string]string{nodeField: "node-a", key1: text1, key2: text2}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName("node-a")}, Data: data}
		rec, err := decodeObject("node-a", object)
		if err != nil {
			assert.True(t, frameworktest.IsKind(err, framework.KindInternal))
			assert.Less(t, len(err.Error()), 1500)
			return
		}
		keys := len(data) - 1
		if rec.Lock != nil {
			keys--
		}
		assert.Len(t, rec.Entries, keys, "decode drops no entry")
		encoded, err := rec.Encode()
		require.NoError(t, err)
		second := clone(t, rec)
		assert.Equal(t, rec.Entries, second.Entries)
		reencoded, err := second.Encode()
		require.NoError(t, err)
		assert.Equal(t, encoded, reencoded, "decode drops no lock")
	})
}
