// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSourceVersion(t *testing.T) {
	cases := map[string]struct {
		reason, goMod, want string
	}{
		"block":    {reason: "as go mod tidy writes it", goMod: "require (\n\tk8s.io/api v0.1.0\n\tk8s.io/kubernetes v1.36.3\n)", want: "v1.36.3"},
		"line":     {reason: "a single requirement", goMod: "require k8s.io/kubernetes v1.37.0-rc.1", want: "v1.37.0-rc.1"},
		"replaced": {reason: "a replacement is not a requirement", goMod: "replace k8s.io/api => k8s.io/kubernetes v1.0.0"},
		"none":     {reason: "nothing to find"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := controlPlaneSource.requiredVersion([]byte(tc.goMod))
			assert.Equal(t, tc.want, got, tc.reason)
			assert.Equal(t, tc.want == "", err != nil, tc.reason)
		})
	}
}

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

func TestLDFlags(t *testing.T) {
	flags := module{source: controlPlaneSource, version: "v1.36.3"}.ldflags()
	assert.Contains(t, flags, "-X=k8s.io/component-base/version.gitVersion=v1.36.3 ")
	assert.Contains(t, flags, "-X=k8s.io/component-base/version.gitMinor=36 ")
	assert.NotContains(t, flags, "\n")
	assert.Equal(t, "-s -w", module{source: kwokSource, version: "v0.8.0"}.ldflags(), "kwok has no version of Kubernetes")
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

func TestGoOutput(t *testing.T) {
	o := newGoOutput([]string{"fmt", "k8s.io/api/core/v1"})
	for _, chunk := range []string{"go: downloading k8s.io/api v0.36.3\nfm", "t\nk8s.io/api/core/v1\n# example.com/x\n", "x.go:1:1: bad\nno newline"} {
		n, err := o.Write([]byte(chunk))
		require.NoError(t, err)
		assert.Len(t, chunk, n)
	}
	compiled, downloads := o.counts()
	assert.Equal(t, 2, compiled)
	assert.Equal(t, 1, downloads)
	assert.Equal(t, "# example.com/x\nx.go:1:1: bad\nno newline", o.rest())
}

// TestCacheKeepsWhatIsUsed: a process removes a cached build only if no other process uses it.
func TestCacheKeepsWhatIsUsed(t *testing.T) {
	c := buildCache{dir: t.TempDir()}
	for _, entry := range []string{"used", "unused", "current-too"} {
		require.NoError(t, os.Mkdir(c.path(entry), 0o755))
	}
	require.NoError(t, c.hold(t.Context(), "used"))
	require.NoError(t, c.hold(t.Context(), "used"), "twice is as good as once")
	c.prune("current")
	assert.True(t, c.has("used"))
	assert.False(t, c.has("unused"))
	assert.True(t, c.has("current-too"), "the same sources built for another use")

	waited := false
	lock, err := c.waitLock(t.Context(), "build", func() { waited = true })
	require.NoError(t, err)
	_, err = tryLock(c.lockPath("build"), false)
	require.ErrorIs(t, err, errLocked)
	lock.release()
	second, err := tryLock(c.lockPath("build"), false)
	require.NoError(t, err)
	second.release()
	assert.False(t, waited)
}

func TestPortsAreNotSharedOut(t *testing.T) {
	t.Setenv(CacheEnv, t.TempDir())
	seen := map[int]bool{}
	for range 2 { // as two clusters would
		p, err := newPorts()
		require.NoError(t, err)
		t.Cleanup(p.release)
		for range 20 {
			port, err := p.reserve(t.Context())
			require.NoError(t, err)
			assert.False(t, seen[port], "port %d was given twice", port)
			seen[port] = true
		}
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	assert.Contains(t, tail(path, 3), "no log")
	require.NoError(t, os.WriteFile(path, []byte("a\nb\nc\n"), 0o644))
	assert.Equal(t, "b\nc", tail(path, 2))
	assert.Equal(t, "a\nb\nc", tail(path, 9))
}

// TestRepositoryKnowsItsModules is about finding the sources from where tests and
// programs of this repository run.
func TestRepositoryKnowsItsModules(t *testing.T) {
	for _, s := range []source{controlPlaneSource, kwokSource, versionSource("1.34")} {
		dir, err := s.find()
		require.NoError(t, err)
		_, file, _, _ := runtime.Caller(0)
		if filepath.IsAbs(file) {
			assert.Equal(t, filepath.Join(filepath.Dir(file), "..", s.folder), dir)
		}
		m, err := findModule(t.Context(), s)
		require.NoError(t, err)
		assert.NotEmpty(t, m.version)
	}
}
