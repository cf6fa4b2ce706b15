// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func sizedConfigMap(size int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"}, Data: map[string]string{"a": strings.Repeat("x", size)}}
}

// Expressions can iterate over a list without elements, which is nil in Go objects.
func TestReduce_EmptyLists(t *testing.T) {
	node, ok := Reduce(&storagev1.CSINode{}).(*storagev1.CSINode)
	require.True(t, ok)
	assert.NotNil(t, node.Spec.Drivers)
	pod, ok := Reduce(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}).(*corev1.Pod)
	require.True(t, ok)
	assert.NotNil(t, pod.Spec.Containers)
	assert.Nil(t, pod.Spec.Volumes, "an absent field stays absent")
}

func TestReduce(t *testing.T) {
	text := strings.Repeat("x", MaxObject)
	labelled, owned, managed := sizedConfigMap(1), sizedConfigMap(1), sizedConfigMap(1)
	labelled.Labels = map[string]string{"a": text}
	owned.OwnerReferences = []metav1.OwnerReference{{Name: text}}
	managed.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: text}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"a": text}}, Spec: corev1.PodSpec{NodeName: "n"}}
	custom := func(content map[string]any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Rack"})
		u.SetName("a")
		u.SetUID("u")
		return u
	}
	for name, tc := range map[string]struct {
		reason string
		object client.Object
		large  bool
		node   string
	}{
		"Small":        {reason: "the size is below the limit", object: sizedConfigMap(MaxObject / 2)},
		"ManagedField": {reason: "the cache does not have managed fields", object: managed},
		"Data":         {reason: "a value is large", object: sizedConfigMap(MaxObject), large: true},
		"Labels":       {reason: "labels count", object: labelled, large: true},
		"Owners":       {reason: "owners count", object: owned, large: true},
		"Pod":          {reason: "the index needs the node", object: pod, large: true, node: "n"},
		"Custom":       {reason: "custom resources can be small", object: custom(map[string]any{"spec": map[string]any{"nodeName": "n", "a": "b"}}), node: "n"},
		"CustomLarge":  {reason: "custom resources count too", object: custom(map[string]any{"spec": map[string]any{"nodeName": "n", "a": []any{text}}}), large: true, node: "n"},
		"NodeImages": {reason: "expressions cannot read them", object: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"}, Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{text}}}},
		}},
		"CustomNode": {reason: "a text of this size is not a node", object: custom(map[string]any{"spec": map[string]any{"nodeName": text}}), large: true},
		"CustomType": {reason: "a list is not a node", object: custom(map[string]any{"spec": map[string]any{"nodeName": []any{text}}}), large: true},
	} {
		t.Run(name, func(t *testing.T) {
			copied, ok := tc.object.DeepCopyObject().(client.Object)
			require.True(t, ok)
			got := Reduce(copied)
			assert.IsType(t, tc.object, got)
			assert.Equal(t, tc.large, isLarge(got), tc.reason)
			assert.Equal(t, tc.object.GetName(), got.GetName())
			assert.Equal(t, tc.object.GetUID(), got.GetUID())
			assert.Equal(t, tc.node, NodeNameOf(got), tc.reason)
			assert.LessOrEqual(t, sizeOf(got), MaxObject)
			assert.Equal(t, got, Reduce(got), "an informer can transform an object twice")
		})
	}
}
