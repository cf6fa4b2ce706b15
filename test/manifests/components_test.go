// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const selfManaged = "config/webhook/overlays/self-managed"

// renderWith builds an operator's own kustomization; see overlay.
func renderWith(t *testing.T, resources, components []string, files map[string]string) []object {
	t.Helper()
	return render(t, overlay(t, resources, components, files))
}

// overlay writes a kustomization of the resources, by their paths from the
// repository's root or as files in it, and the components, and returns its folder.
func overlay(t *testing.T, resources, components []string, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	way, err := filepath.Rel(dir, top)
	require.NoError(t, err)
	k := map[string]any{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
	var all, on []string
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		all = append(all, name)
	}
	for _, r := range resources {
		all = append(all, path.Join(filepath.ToSlash(way), r))
	}
	for _, c := range components {
		on = append(on, path.Join(filepath.ToSlash(way), everything, c))
	}
	k["resources"], k["components"] = all, on
	content, err := yaml.Marshal(k)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600))
	return dir
}

func containerOf(t *testing.T, objects []object) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	spec := get[*appsv1.Deployment](t, objects, "prebind").Spec.Template.Spec
	require.Len(t, spec.Containers, 1)
	return spec, spec.Containers[0]
}
