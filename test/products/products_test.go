// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package products tests shipped policies with the code of the products that they are for: the product makes the pod, Prebind
// evaluates the policy for it, and the product reads what the policy writes.
package products

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const root = "../.."

// requireWritten requires that the shipped policy allows the bind of the pod to a node with the labels, and writes exactly the
// annotations. The bind is a case of `kubectl prebind policy test`, so that this module does not depend on Prebind.
func requireWritten(t *testing.T, annotations map[string]string, policy string, pod *corev1.PodTemplateSpec, nodeLabels map[string]string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "config", "policies", policy, "policy.yaml"))
	require.NoError(t, err)
	bind, err := json.Marshal(map[string]any{
		"apiVersion":  "policy.prebind.dev/v1alpha1",
		"kind":        "BindPolicyTest",
		"keyPrefixes": []string{"example.com", "ray.io"},
		"objects": []any{
			corev1.Node{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: nodeLabels},
			},
			corev1.Pod{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", Labels: pod.Labels, Annotations: pod.Annotations},
				Spec:       pod.Spec,
			},
		},
		"cases": []any{map[string]any{
			"name":   t.Name(),
			"expect": []any{map[string]any{"verdict": "allowed", "annotations": annotations}},
		}},
	})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "policy.yaml"), content, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "product_test.yaml"), bind, 0o600))
	command := exec.CommandContext(t.Context(), "go", "run", "./cmd/kubectl-prebind", "policy", "test", dir)
	command.Dir = root
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)
}

// annotationOf returns the annotation of the pod whose value the variable of the container has.
func annotationOf(t *testing.T, pod *corev1.PodTemplateSpec, container, variable string) string {
	t.Helper()
	for _, v := range containerOf(t, pod, container).Env {
		if v.Name == variable {
			return strings.TrimSuffix(strings.TrimPrefix(v.ValueFrom.FieldRef.FieldPath, "metadata.annotations['"), "']")
		}
	}
	require.Fail(t, "the container has no variable "+variable)
	return ""
}

func containerOf(t *testing.T, pod *corev1.PodTemplateSpec, name string) *corev1.Container {
	t.Helper()
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	require.Fail(t, "the pod has no container "+name)
	return nil
}
