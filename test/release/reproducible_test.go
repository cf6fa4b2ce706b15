// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Another directory, time, time zone, language, file mask and settings of Go give the same bytes. The workflow release also uses
// an empty build cache, and all platforms.
func TestRelease_IsReproducible(t *testing.T) {
	t.Parallel()
	first := sumsOf(t, releaseOf(t, current))
	elsewhere, out := filepath.Join(scratch, "elsewhere", "copy"), filepath.Join(scratch, "again")
	require.NoError(t, copyCheckout(t.Context(), elsewhere))
	// As go env -w writes it.
	settings := filepath.Join(t.TempDir(), "env")
	require.NoError(t, os.WriteFile(settings, []byte("GOFLAGS=-gcflags=-N\n"), 0o600))
	require.NoError(t, makeRelease(t.Context(), elsewhere, current, out,
		"TZ=Pacific/Auckland", "LC_ALL=C", "MASK=077", "GOAMD64=v3", "GOENV="+settings, "GOTOOLCHAIN=local"))
	assert.NotEmpty(t, first)
	assert.Equal(t, first, sumsOf(t, out))
}

// A release is built with the toolchain of go.mod and not with a newer Go of this machine, whose bytes differ.
func TestRelease_UsesToolchainOfGoMod(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(scratch, "toolchain")
	require.NoError(t, copyCheckout(t.Context(), dir))
	path := filepath.Join(dir, "go.mod")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^toolchain go1\.\d+\.\d+$`)
	require.Regexp(t, line, string(content))
	// Go does not find this version, because it cannot download it.
	require.NoError(t, os.WriteFile(path, line.ReplaceAll(content, []byte("toolchain go1.26.999")), 0o600))
	require.NoError(t, git(t.Context(), dir, "commit", "--quiet", "--all", "--message=Toolchain"))
	err = makeRelease(t.Context(), dir, current, filepath.Join(scratch, "none"), "GOPROXY=off", "GOTOOLCHAIN=local")
	require.ErrorContains(t, err, "go1.26.999")
}

// sumsOf returns the checksums of the files by their name.
func sumsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		all[e.Name()] = sumOf(read(t, filepath.Join(dir, e.Name())))
	}
	return all
}
