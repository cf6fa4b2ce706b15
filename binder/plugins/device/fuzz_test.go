// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/config/v1alpha1"
)

// FuzzParse checks that annotations are either valid, and then the same after they are
// encoded and decoded, or rejected with a short message that names them.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"GPU-1", "GPU-1,GPU-2:0.5", "0000:3b:00.0:1", "0000:3b:00.0", ".5", "5e-1", "0,5", "GPU-1:0.3333333",
		"GPU-1:1.0,GPU-1", ",", ":", "::", "true", "GPU-é", "\xff:1", strings.Repeat("a,", 5000), strings.Repeat(":", 300),
	} {
		f.Add("gpu", seed, "fpga", seed, "true")
		f.Add("gpu", seed, lockKey, "no", seed)
	}
	f.Fuzz(func(t *testing.T, key1, value1, key2, value2, locked string) {
		if len(key1) > 253 || len(key2) > 253 || !isText(key1, key2) {
			return // The engine rejects it.
		}
		values := map[string]string{key1: value1, key2: value2, lockKey: locked}
		a, err := parse(on("Pod", values))
		if err != nil {
			var invalid *framework.Error
			require.ErrorAs(t, err, &invalid)
			assert.Equal(t, framework.KindInvalid, invalid.Kind)
			assert.NotEmpty(t, invalid.Fields)
			for _, field := range invalid.Fields {
				key := strings.TrimSuffix(strings.TrimPrefix(field.Path, "metadata.annotations[device."+v1alpha1.Domain+"/"), "]")
				assert.Contains(t, values, key)
				assert.Less(t, len(field.Message), 1000)
			}
			assert.Less(t, len(err.Error()), 4000)
			return
		}
		again := map[string]string{}
		for key, ids := range a.devices {
			again[key] = written(ids)
		}
		if a.lock {
			again[lockKey] = "true"
		}
		b, err := parse(on("Pod", shorter(again, values)))
		require.NoError(t, err)
		assert.Equal(t, a, b)
		assert.Less(t, len(a.devices.String()), 6000)
		if len(a.devices) > 0 {
			rec := of(map[types.UID]*entry{"p": grants(grant{"a", a.devices})})
			assert.Equal(t, rec.Entries, clone(t, rec).Entries, "decode is the reverse of Encode")
		}
	})
}

func isText(texts ...string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool { return strings.ToValidUTF8(text, "") != text })
}

func written(ids map[string]share) string {
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		parts = append(parts, id+":"+ids[id].String())
	}
	return strings.Join(parts, ",")
}

// shorter keeps the values if their normalized form exceeds the limit.
func shorter(again, values map[string]string) map[string]string {
	total := 0
	for key, value := range again {
		total += len(key) + len(value)
	}
	if total > maxText {
		return values
	}
	return again
}

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
