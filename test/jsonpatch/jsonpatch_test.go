// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package jsonpatch

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestApply(t *testing.T) {
	cases := map[string]struct {
		reason  string
		doc     string
		kind    types.PatchType
		content string
		want    string
		fails   bool
	}{
		"JSONPatch":  {reason: "a webhook answers with one", doc: `{"a":{"b":1},"c":2}`, kind: types.JSONPatchType, content: `[{"op":"add","path":"/a/x~1y","value":3},{"op":"remove","path":"/c"}]`, want: `{"a":{"b":1,"x/y":3}}`},
		"Test":       {reason: "a precondition that fails ends the patch", doc: `{"a":1}`, kind: types.JSONPatchType, content: `[{"op":"test","path":"/a","value":2},{"op":"remove","path":"/a"}]`, fails: true},
		"MergePatch": {reason: "null removes a key", doc: `{"a":{"b":1,"c":2}}`, kind: types.MergePatchType, content: `{"a":{"b":null,"d":3}}`, want: `{"a":{"c":2,"d":3}}`},
		"NotJSON":    {reason: "the document is invalid", doc: `{`, kind: types.MergePatchType, content: `{}`, fails: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Apply([]byte(tc.doc), tc.kind, []byte(tc.content))
			if tc.fails {
				require.Error(t, err, tc.reason)
				return
			}
			require.NoError(t, err)
			assert.JSONEq(t, tc.want, string(got), tc.reason)
		})
	}
}

func TestTo(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Finalizers: []string{"a", "b"}}, Spec: corev1.PodSpec{NodeName: "node-a"}}
	got, err := To(pod, types.StrategicMergePatchType, []byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]},"spec":{"nodeName":null}}`))
	require.NoError(t, err)
	assert.Equal(t, []string{"b"}, got.Finalizers)
	assert.Empty(t, got.Spec.NodeName, "a field that is removed is empty")
	assert.Equal(t, "node-a", pod.Spec.NodeName, "the object itself stays as it is")
}
