// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The documentation names the tested versions.
func TestDocs_ProvisionerVersions(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "volumebinding.md"))
	require.NoError(t, err)
	for name, s := range map[string]source{
		"external-provisioner":                 csiProvisionerSource,
		"sig-storage-lib-external-provisioner": {folder: "controlplane", requires: "sigs.k8s.io/sig-storage-lib-external-provisioner/v13"},
	} {
		m, err := findModule(t.Context(), s)
		require.NoError(t, err)
		assert.Contains(t, strings.Join(strings.Fields(string(page)), " "), " "+name+" "+m.version)
	}
}

func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	write := func(name, content string) string {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
		hash, err := module{dir: dir, version: "v1.36.3"}.fingerprint(t.Context())
		require.NoError(t, err)
		return hash
	}
	first := write("go.mod", "module example.com/m\n\ngo 1.26.0\n")
	assert.Equal(t, first, write("README.md", "no input of the build"))
	assert.Equal(t, first, write("sub/a_test.go", "package sub"))
	second := write("sub/a.go", "package sub")
	assert.NotEqual(t, first, second)
	assert.NotEqual(t, second, write("sub/a.go", "package sub // other"))
	assert.Equal(t, second, write("sub/a.go", "package sub"))
}
