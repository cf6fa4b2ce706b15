// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	policyv1alpha1 "github.com/prebind/prebind/policy/v1alpha1"
)

var (
	webhook = &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "prebind"}}
	policy  = &policyv1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "rack-awareness"}}
)

func reader(t *testing.T, objects ...client.Object) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, policyv1alpha1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func TestInstalled(t *testing.T) {
	for name, tc := range map[string]struct {
		objects []client.Object
		want    bool
	}{
		"Both":         {[]client.Object{webhook, policy}, true},
		"WithoutRacks": {[]client.Object{webhook}, false},
		"Uninstalled":  {[]client.Object{policy}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Installed(t.Context(), reader(t, tc.objects...))
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
	t.Run("WithoutKind", func(t *testing.T) {
		got, err := Installed(t.Context(), interceptor.NewClient(fake.NewFakeClient(webhook), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
				if _, ok := object.(*metav1.PartialObjectMetadata); ok {
					return &meta.NoKindMatchError{}
				}
				return c.Get(ctx, key, object, opts...)
			},
		}))
		require.NoError(t, err)
		assert.False(t, got)
	})
}

func TestDecide(t *testing.T) {
	with, without := reader(t, webhook, policy), reader(t)
	early, late := &corev1.ConfigMap{}, &corev1.ConfigMap{}
	for _, step := range []struct {
		reason   string
		reader   client.Reader
		resource *corev1.ConfigMap
		hasPods  bool
		want     bool
	}{
		{reason: "Prebind is not installed", reader: without, resource: early},
		{reason: "an installation does not change an earlier decision", reader: with, resource: early},
		{reason: "Prebind is installed", reader: with, resource: late, want: true},
		{reason: "an uninstallation does not change an earlier decision", reader: without, resource: late, hasPods: true, want: true},
		{reason: "running pods are not restarted", reader: with, resource: &corev1.ConfigMap{}, hasPods: true},
	} {
		got, err := Decide(t.Context(), step.reader, step.resource, step.hasPods)
		require.NoError(t, err)
		assert.Equal(t, step.want, got, step.reason)
	}
}

func TestRequire(t *testing.T) {
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
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
}

func TestRack(t *testing.T) {
	annotated := map[string]string{rackAnnotation: "rack-7"}
	for name, tc := range map[string]struct {
		node        string
		annotations map[string]string
		rack        string
		fails       bool
	}{
		"Bound":        {node: "node-1", annotations: annotated, rack: "rack-7"},
		"BoundWithout": {node: "node-1", fails: true},
		"Pending":      {annotations: annotated},
	} {
		t.Run(name, func(t *testing.T) {
			rack, err := Rack(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}, Spec: corev1.PodSpec{NodeName: tc.node}})
			assert.Equal(t, tc.rack, rack)
			assert.Equal(t, tc.fails, err != nil)
		})
	}
}
