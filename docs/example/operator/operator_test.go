// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

var (
	webhook = &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "prebind"}}
	policy  = policyIn("Enforce")
)

func policyIn(mode string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "policy.prebind.dev/v1alpha1", "kind": "BindPolicy",
		"metadata": map[string]any{"name": "rack-awareness"}, "spec": map[string]any{"mode": mode},
	}}
}

func clusterOf(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{policy.GroupVersionKind().GroupVersion()})
	mapper.Add(policy.GroupVersionKind(), meta.RESTScopeRoot)
	return fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(objects...).Build()
}

func TestInstalled(t *testing.T) {
	for name, tc := range map[string]struct {
		objects []client.Object
		want    bool
	}{
		"Both":         {[]client.Object{webhook, policy}, true},
		"WithoutRacks": {[]client.Object{webhook}, false},
		"Uninstalled":  {[]client.Object{policy}, false},
		"Audit":        {[]client.Object{webhook, policyIn("Audit")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, tc.objects...)
			got, err := Installed(t.Context(), c.RESTMapper(), c)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
	t.Run("WithoutKind", func(t *testing.T) {
		got, err := Installed(t.Context(), meta.NewDefaultRESTMapper(nil), clusterOf(t, webhook))
		require.NoError(t, err)
		assert.False(t, got)
	})
}

func TestDecide(t *testing.T) {
	relying, ofUser := &corev1.PodTemplateSpec{}, &corev1.PodTemplateSpec{}
	Require(relying)
	ofUser.Annotations = map[string]string{requireAnnotation: "volumebinding,policy"}
	for name, tc := range map[string]struct {
		decision string
		existing *corev1.PodTemplateSpec
		want     bool
	}{
		"Undecided":       {},
		"Decided":         {decision: "true", existing: &corev1.PodTemplateSpec{}, want: true},
		"DecidedNot":      {decision: "false", existing: relying},
		"ExistingPods":    {existing: &corev1.PodTemplateSpec{}},
		"RequiredByUsers": {existing: ofUser},
		"LostDecision":    {existing: relying, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			resource := &corev1.ConfigMap{}
			if tc.decision != "" {
				resource.Annotations = map[string]string{decisionAnnotation: tc.decision}
			}
			got, err := Decide(resource, tc.existing)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
	_, err := Decide(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{decisionAnnotation: "maybe"}}}, nil)
	require.Error(t, err)
}

func TestRequire(t *testing.T) {
	template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		rackAnnotation: "forged", dataCenterAnnotation: "forged", requireAnnotation: "volumebinding",
	}}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"}},
		Containers:     []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "A"}, {Name: "RACK", Value: "default"}}}},
	}}
	Require(template)
	once := template.DeepCopy()
	Require(template)
	assert.Equal(t, once, template, "a second call changes nothing")
	for _, c := range []corev1.Container{template.Spec.InitContainers[0], template.Spec.Containers[0]} {
		assert.Equal(t, "RACK", c.Env[0].Name)
		assert.Equal(t, "metadata.annotations['rack-awareness.policy.prebind.dev/rack']", c.Env[0].ValueFrom.FieldRef.FieldPath)
	}
	assert.Len(t, template.Spec.Containers[0].Env, 2)
	assert.Equal(t, map[string]string{requireAnnotation: "volumebinding,policy"}, template.Annotations)
}

func TestRack(t *testing.T) {
	relying := map[string]string{requireAnnotation: "volumebinding, policy"}
	annotated := map[string]string{requireAnnotation: "policy", rackAnnotation: "rack-7"}
	for name, tc := range map[string]struct {
		node        string
		annotations map[string]string
		rack        string
		fails       bool
	}{
		"Bound":        {node: "node-1", annotations: annotated, rack: "rack-7"},
		"BoundWithout": {node: "node-1", annotations: relying, fails: true},
		"EarlierPod":   {node: "node-1"},
		"Pending":      {annotations: annotated},
	} {
		t.Run(name, func(t *testing.T) {
			rack, err := Rack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}, Spec: corev1.PodSpec{NodeName: tc.node}})
			assert.Equal(t, tc.rack, rack)
			assert.Equal(t, tc.fails, err != nil)
		})
	}
}
