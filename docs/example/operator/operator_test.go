// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"
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
	Require(relying, "busybox")
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
	Require(template, "busybox")
	once := template.DeepCopy()
	Require(template, "busybox")
	assert.Equal(t, once, template, "a second call changes nothing")
	require.Len(t, template.Spec.InitContainers, 2)
	assert.Equal(t, "rack-check", template.Spec.InitContainers[0].Name)
	for _, c := range []corev1.Container{template.Spec.InitContainers[0], template.Spec.InitContainers[1], template.Spec.Containers[0]} {
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

// read returns the objects of a manifest by kind.
func read(t *testing.T, file string, into map[string]any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "manifests", file))
	require.NoError(t, err)
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var of metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal([]byte(document), &of))
		if o, ok := into[of.Kind]; ok {
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), o))
		}
	}
}

// The code and the manifests show the same containers.
func TestManifests(t *testing.T) {
	store := &appsv1.StatefulSet{}
	read(t, "kafka.yaml", map[string]any{"StatefulSet": store})
	check := store.Spec.Template.Spec.InitContainers[0]
	template := &corev1.PodTemplateSpec{}
	Require(template, check.Image)
	assert.Equal(t, []corev1.Container{check}, template.Spec.InitContainers)

	want := &corev1.Pod{}
	read(t, "rack-fallback.yaml", map[string]any{"Pod": want})
	template = &corev1.PodTemplateSpec{ObjectMeta: *want.ObjectMeta.DeepCopy(), Spec: *want.Spec.DeepCopy()}
	delete(template.Labels, selectingLabel)
	template.Spec.InitContainers, template.Spec.Volumes, template.Spec.Containers[0].VolumeMounts = nil, nil, nil
	for range 2 { // A second call changes nothing.
		Fallback(template, want.Spec.InitContainers[0].Image)
		assert.Equal(t, want.Spec, template.Spec)
		assert.Equal(t, want.Labels, template.Labels)
	}
}

// A pod without a rack is deleted once, after its UID is stored. Of a second one, the operator reports that it has none.
func TestReplace(t *testing.T) {
	pod := func(uid types.UID, node, rack string) *corev1.Pod {
		annotations := map[string]string{requireAnnotation: "policy"}
		if rack != "" {
			annotations[rackAnnotation] = rack
		}
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "store-0", UID: uid, Annotations: annotations}, Spec: corev1.PodSpec{NodeName: node}}
	}
	for name, tc := range map[string]struct {
		pod      *corev1.Pod
		replaced types.UID
		want     types.UID
		deleted  bool
		fails    string
	}{
		"Pending":        {pod: pod("b", "", ""), replaced: "a", want: "a"},
		"WithRack":       {pod: pod("b", "node-1", "rack-7"), replaced: "a"},
		"Without":        {pod: pod("a", "node-1", ""), want: "a"},
		"Stored":         {pod: pod("a", "node-1", ""), replaced: "a", want: "a", deleted: true},
		"SuccessorLacks": {pod: pod("b", "node-1", ""), replaced: "a", want: "a", fails: "the pod before it had none either"},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, tc.pod.DeepCopy())
			got, err := Replace(t.Context(), c, tc.pod, tc.replaced)
			assert.Equal(t, tc.want, got)
			if tc.fails == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.fails)
			}
			assert.Equal(t, tc.deleted, apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(tc.pod), &corev1.Pod{})))
		})
	}
	t.Run("GoneMeanwhile", func(t *testing.T) {
		c := clusterOf(t)
		got, err := Replace(t.Context(), c, pod("a", "node-1", ""), "a")
		require.NoError(t, err)
		assert.Equal(t, types.UID("a"), got)
	})
}
