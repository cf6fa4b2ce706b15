// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestTemplate(t *testing.T) {
	template := &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{prebindAnnotation: "forged", ownAnnotation: "forged", "kept": "yes"}},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init"}},
			Containers:     []corev1.Container{{Name: "store", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			Volumes:        []corev1.Volume{{Name: "data"}},
		},
	}
	Template(template, "busybox:1.37", true)
	once := template.DeepCopy()
	Template(template, "busybox:1.37", true)
	assert.Equal(t, once, template, "a second call changes nothing")
	assert.Equal(t, map[string]string{selectingLabel: "true"}, template.Labels)
	assert.Equal(t, map[string]string{"kept": "yes", requireAnnotation: "policy"}, template.Annotations)
	require.Len(t, template.Spec.InitContainers, 2)
	assert.Equal(t, "wait-for-rack", template.Spec.InitContainers[0].Name)
	mount := corev1.VolumeMount{Name: "rack", MountPath: "/etc/rack", ReadOnly: true}
	for _, c := range append(template.Spec.InitContainers, template.Spec.Containers...) {
		assert.Contains(t, c.VolumeMounts, mount, c.Name)
	}
	assert.Len(t, template.Spec.Volumes, 2)
	Template(template, "busybox:1.37", false)
	assert.Equal(t, map[string]string{"kept": "yes"}, template.Annotations)
}

func TestSupply(t *testing.T) {
	for name, tc := range map[string]struct {
		node        string
		labels      map[string]string
		annotations map[string]string
		want        string
		fails       string
	}{
		"Pending":  {labels: map[string]string{"example.com/rack": "r7"}},
		"Prebind":  {node: "node-1", labels: map[string]string{"example.com/rack": "r8"}, annotations: map[string]string{prebindAnnotation: "r7"}, want: "r7"},
		"Supplied": {node: "node-1", labels: map[string]string{"example.com/rack": "r8"}, annotations: map[string]string{ownAnnotation: "r7"}, want: "r7"},
		"Label":    {node: "node-1", labels: map[string]string{"example.com/rack": "r7", corev1.LabelTopologyZone: "a"}, want: "r7"},
		"Zone":     {node: "node-1", labels: map[string]string{"example.com/rack": "", corev1.LabelTopologyZone: "a"}, want: "a"},
		"Neither":  {node: "node-1", fails: ErrNoRack.Error()},
		"Required": {node: "node-1", annotations: map[string]string{requireAnnotation: "policy"}, fails: ErrUnprepared.Error()},
		"NodeGone": {node: "node-2", fails: "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "store-0", Annotations: tc.annotations}, Spec: corev1.PodSpec{NodeName: tc.node}}
			c := fake.NewClientBuilder().WithObjects(pod, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: tc.labels}}).Build()
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
			err := Supply(t.Context(), c, c, pod, "example.com/rack")
			if tc.fails == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.fails)
			}
			require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
			assert.Equal(t, tc.want, Rack(pod))
		})
	}
	t.Run("Replaced", func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "store-0"}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"example.com/rack": "r7"}}}
		c := fake.NewClientBuilder().WithObjects(pod, node).Build()
		read := &corev1.Pod{}
		require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(pod), read))
		read.ResourceVersion, read.Spec.NodeName = "1", "node-1"
		assert.True(t, apierrors.IsConflict(Supply(t.Context(), c, c, read, "example.com/rack")), "another pod may have the name")
	})
}

func TestInstalled(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, admissionregistrationv1.AddToScheme(scheme))
	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "prebind"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{NamespaceSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "prebind.dev/exempt", Operator: metav1.LabelSelectorOpDoesNotExist}},
		}}}}
	plugin := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "prebind-policy"}}
	policy := func(ready, mode string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "policy.prebind.dev/v1alpha1", "kind": "BindPolicy",
			"metadata": map[string]any{"name": policyName, "generation": int64(2)},
			"spec":     map[string]any{"mode": mode, "variables": []any{map[string]any{"name": "label", "expression": "'example.com/rack'"}}},
			"status":   map[string]any{"observedGeneration": int64(2), "conditions": []any{map[string]any{"type": "Ready", "status": ready}}},
		}}
	}
	exempt, inForce, edited := map[string]string{"prebind.dev/exempt": ""}, policy("True", "Enforce"), policy("True", "Enforce")
	edited.SetGeneration(3)
	for name, tc := range map[string]struct {
		labels  map[string]string
		objects []client.Object
		label   string
		want    bool
	}{
		"Nothing":   {},
		"NoWebhook": {objects: []client.Object{plugin, inForce}},
		"NoPlugin":  {objects: []client.Object{webhook, inForce}},
		"NoPolicy":  {objects: []client.Object{webhook, plugin}},
		"NotReady":  {objects: []client.Object{webhook, plugin, policy("False", "Enforce")}},
		"Exempt":    {labels: exempt, objects: []client.Object{webhook, plugin, inForce}},
		"Audit":     {objects: []client.Object{webhook, plugin, policy("True", "Audit")}},
		"Edited":    {objects: []client.Object{webhook, plugin, edited}},
		"Label":     {objects: []client.Object{webhook, plugin, inForce}, label: "example.com/row"},
		"Installed": {objects: []client.Object{webhook, plugin, inForce}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: tc.labels}}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(tc.objects, namespace)...).Build()
			got, err := Installed(t.Context(), c, "shop", cmp.Or(tc.label, "example.com/rack"))
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
}
