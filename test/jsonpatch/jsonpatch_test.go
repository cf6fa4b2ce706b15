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

func TestTo(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Finalizers: []string{"a", "b"}}, Spec: corev1.PodSpec{NodeName: "node-a"}}
	got, err := To(pod, types.StrategicMergePatchType, []byte(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a"]},"spec":{"nodeName":null}}`))
	require.NoError(t, err)
	assert.Equal(t, []string{"b"}, got.Finalizers)
	assert.Empty(t, got.Spec.NodeName, "a field that is removed is empty")
	assert.Equal(t, "node-a", pod.Spec.NodeName, "the object itself stays as it is")
}
