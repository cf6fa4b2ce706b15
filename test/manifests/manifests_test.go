// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifests_test holds config/webhook and the chart to their promises: it renders them as an operator would.
package manifests_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/test/install"
)

const (
	root        = "../.."
	everything  = "config/webhook"
	base        = "config/webhook/base"
	selfManaged = "config/webhook/overlays/self-managed"
	// firstInstall is what the chart installs by default.
	firstInstall = "config/first-install"
	namespace    = "prebind-system"
	caBundle     = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk5vdGhpbmcKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="
)

// overlay writes an operator's own kustomization of the resource and the components of config/webhook, and returns its folder. The
// component for certificates in files gets a Secret. Labels and image are those of the shipped kustomization.
func overlay(t *testing.T, resource string, components ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	way, err := filepath.Rel(dir, top)
	require.NoError(t, err)
	way = filepath.ToSlash(way)
	resources, on := []string{path.Join(way, resource)}, make([]string, 0, len(components))
	for _, c := range components {
		on = append(on, path.Join(way, everything, c))
	}
	if slices.Contains(components, "certificates/files") {
		secret := "{apiVersion: v1, kind: Secret, metadata: {name: prebind-webhook-tls, namespace: prebind-system}, data: {ca.crt: " + caBundle + "}}"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "secret.yaml"), []byte(secret), 0o600))
		resources = append(resources, "secret.yaml")
	}
	content, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources, "components": on,
		"labels": []any{map[string]any{"pairs": map[string]string{"app.kubernetes.io/name": "prebind", "app.kubernetes.io/part-of": "prebind"}}},
		"images": []any{map[string]string{"name": "prebind", "newName": "ghcr.io/prebind/prebind", "newTag": "latest"}},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600))
	return dir
}

// kustomization returns the objects of a kustomization. Like `kubectl apply -k`, it keeps the order of the files unless the
// kustomization says otherwise.
func kustomization(t *testing.T, dir string) []string {
	t.Helper()
	touch(t, filepath.Join(root, "config"), filepath.Join(root, "tools.mod"))
	top, err := filepath.Abs(root)
	require.NoError(t, err)
	cmd, err := install.Tool(t.Context(), top, "kustomize", "build", "--reorder=none", filepath.FromSlash(dir))
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "kustomize build %s: %s", dir, &stderr)
	return documents(t, out)
}

// touch reads the files below the paths. go test does not track files that other processes read: without this it would return a cached
// result after a change of a manifest.
func touch(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		require.NoError(t, filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			_, err = os.ReadFile(path)
			return err
		}))
	}
}

// TestBuildIsSmall: the shipped binary is built with the tag without which the linker keeps all methods of Kubernetes' types,
// which is 20 MB, and with the time zones for CEL, which the image of a release does not have.
func TestBuildIsSmall(t *testing.T) {
	const tag = "-tags grpcnotrace,timetzdata"
	for _, file := range []string{"Makefile", "Dockerfile"} {
		content, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		for line := range strings.Lines(string(content)) {
			if strings.Contains(line, "go build") && strings.Contains(line, "-trimpath") {
				assert.Contains(t, line, tag, file)
			}
		}
		assert.Contains(t, string(content), tag, file)
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "grpcnotrace", "./cmd/prebind")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	assert.NotContains(t, strings.Fields(string(out)), "golang.org/x/net/trace", "it comes by another way as well")
}
