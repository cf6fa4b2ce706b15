// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSelectVersion(t *testing.T) {
	byDefault, all, err := versions()
	require.NoError(t, err)
	require.Contains(t, all, "1.34")
	cases := map[string]struct {
		reason, option, env, assets string
		want                        string // file with the requirements
		wantError                   string
	}{
		"none":              {reason: "without a version the default runs"},
		"environment":       {reason: "the variable selects", env: "1.34", want: "1.34.mod"},
		"option":            {reason: "a test can require a version", option: "1.35", env: "1.34", want: "1.35.mod"},
		"default":           {reason: "the default version needs no other build", env: byDefault},
		"default by option": {reason: "the option overrides the variable also with the default", option: byDefault, env: "1.34"},
		"unknown": {
			reason: "the error names the versions to choose from", env: "1.2",
			wantError: "select Kubernetes 1.2: unknown version: set PREBIND_TEST_KUBERNETES to one of 1.34, 1.35, 1.36, 1.37",
		},
		"patch": {reason: "the sources decide the patch version", env: "1.34.4", wantError: "unknown version"},
		"path":  {reason: "a version is not a path", env: "../controlplane/go", wantError: "unknown version"},
		"own binaries": {
			reason: "the binaries in KUBEBUILDER_ASSETS have a version of their own", env: "1.34", assets: "/opt/kubernetes",
			wantError: "unset KUBEBUILDER_ASSETS or PREBIND_TEST_KUBERNETES",
		},
		"only own binaries": {reason: "KUBEBUILDER_ASSETS alone is accepted", assets: "/opt/kubernetes"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv(VersionEnv, tc.env)
			t.Setenv(AssetsEnv, tc.assets)
			got, needed, err := selectVersion(tc.option)
			if tc.wantError != "" {
				require.ErrorContains(t, err, tc.wantError, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want != "", needed, tc.reason)
			if needed {
				assert.Equal(t, tc.want, got.modFile(), tc.reason)
			}
		})
	}
}

// TestVersionsHaveTheirOwnBuilds: the cache keeps the builds of all versions, and removes only former builds of the same version.
func TestVersionsHaveTheirOwnBuilds(t *testing.T) {
	root := t.TempDir()
	_, all, err := versions()
	require.NoError(t, err)
	seen := map[string]string{}
	for _, version := range all {
		s, needed, err := selectVersion(version)
		require.NoError(t, err)
		if !needed {
			s = controlPlaneSource
		}
		m, err := findModule(t.Context(), s)
		require.NoError(t, err)
		assert.Regexp(t, `^v`+version+`\.\d+$`, m.version, "a file has the name of the version that it requires")
		assert.NotContains(t, seen, m.hash, "Kubernetes %s and %s would share a build", version, seen[m.hash])
		seen[m.hash] = version
		c := buildCache{dir: filepath.Join(root, s.cacheFolder())}
		require.NoError(t, os.MkdirAll(c.path("former"), 0o755))
		require.NoError(t, os.Mkdir(c.path(m.hash), 0o755))
		c.prune(m.hash)
		assert.False(t, c.has("former"), "the former build of Kubernetes %s stays", version)
	}
	builds, err := filepath.Glob(filepath.Join(root, "*", "????????????????"))
	require.NoError(t, err)
	assert.Len(t, builds, len(all), "a version removed the build of another")
}

// TestVersionChangesOnlyItsOwnBuild: an update of one version does not rebuild the others.
func TestVersionChangesOnlyItsOwnBuild(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(name+t.Name()), 0o644))
	}
	hash := func() string {
		t.Helper()
		got, err := module{source: versionSource("1.34"), dir: dir, version: "v1.34.4"}.fingerprint(t.Context())
		require.NoError(t, err)
		return got
	}
	write("main.go")
	before := hash()
	write("1.35.mod")
	write("1.35.sum")
	assert.Equal(t, before, hash(), "files of another version")
	for _, name := range []string{"1.34.mod", "1.34.sum", "other.go"} {
		write(name)
		assert.NotEqual(t, before, hash(), name)
		before = hash()
	}
}
