// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apijson "k8s.io/apimachinery/pkg/util/json"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/test/jsonpatch"
)

// FuzzPatch applies the patch like the API server. The patch sets the keys of the decision and changes nothing else.
func FuzzPatch(f *testing.F) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.request.json"))
	require.NoError(f, err)
	require.NotEmpty(f, paths)
	for _, path := range paths {
		body, err := os.ReadFile(path)
		require.NoError(f, err)
		var review admissionv1.AdmissionReview
		require.NoError(f, json.Unmarshal(body, &review))
		f.Add(review.Request.Object.Raw, "topology.prebind.dev/zone", "z1", "example.com/a~b", "0a1b2c3d")
	}
	f.Add([]byte(`{"metadata":{"annotations":{"":"","a/b":"1"}},"other":[1.5]}`), "a/b", "1", "", "")
	f.Add([]byte(`{"metadata":{}}`), "~1", "<&>", "~0/", "")
	f.Add([]byte(`{"metadata":null}`), "a", "", "a", "1")
	for _, value := range []string{`"`, `\`, "\n\x00", "\x7f", "ä\u2028", "<&>"} {
		f.Add([]byte(`{"metadata":{"annotations":{}}}`), "a", value, value, "1")
	}
	f.Fuzz(func(t *testing.T, raw []byte, key, value, second, uid string) {
		var object map[string]any
		if json.Unmarshal(raw, &object) != nil || object == nil {
			return // The API server sends only objects.
		}
		for _, s := range []string{key, value, second, uid} {
			if !utf8.ValidString(s) {
				return // The engine validates additions.
			}
		}
		// The API server sends no duplicate keys.
		raw, err := json.Marshal(object)
		require.NoError(t, err)
		request := func(raw []byte) *admissionv1.AdmissionRequest {
			return &admissionv1.AdmissionRequest{
				Name: "web", Namespace: "shop", Operation: admissionv1.Create, SubResource: "binding",
				Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
				Kind:     metav1.GroupVersionKind{Version: "v1", Kind: "Binding"},
				Object:   runtime.RawExtension{Raw: raw},
			}
		}
		b, bad := parse(request(raw))
		if bad != nil {
			return // Not a Binding.
		}
		if _, ok := object["metadata"].(map[string]any); !ok {
			return // The Binding of an API server has metadata.
		}
		d := binder.Decision{Annotations: map[string]string{key: value, second: value + "!"}, Labels: map[string]string{second: value}, UID: types.UID(uid)}

		want := b.Binding.DeepCopy()
		if want.Annotations == nil {
			want.Annotations = map[string]string{}
		}
		maps.Copy(want.Annotations, d.Annotations)
		if want.Labels == nil {
			want.Labels = map[string]string{}
		}
		maps.Copy(want.Labels, d.Labels)
		if uid != "" {
			want.UID = d.UID
		}
		patched := raw
		if patch := patchFor(b.Binding, d); patch != nil {
			encoded, err := json.Marshal(patch)
			require.NoError(t, err)
			patched, err = jsonpatch.Apply(raw, types.JSONPatchType, encoded)
			require.NoError(t, err, "%s of %s", encoded, raw)
		}
		got := &corev1.Binding{}
		require.NoError(t, apijson.Unmarshal(patched, got), "%s", patched)
		got.ManagedFields, got.OwnerReferences, got.Finalizers = nil, nil, nil // parse drops them.
		assert.Equal(t, want, got)

		var after map[string]any
		require.NoError(t, json.Unmarshal(patched, &after))
		for _, o := range []map[string]any{object, after} {
			delete(o, "metadata")
		}
		assert.Equal(t, object, after, "only metadata changes")

		again, bad := parse(request(patched))
		require.Nil(t, bad)
		d.UID = ""
		assert.Nil(t, patchFor(again.Binding, d), "a second patch is empty")
	})
}
