// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package release_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Another directory, time, time zone, language and file mask give the same bytes. make verify-release also uses an empty build cache,
// and all platforms.
func TestRelease_IsReproducible(t *testing.T) {
	t.Parallel()
	first := sumsOf(t, releaseOf(t, current))
	elsewhere, out := filepath.Join(scratch, "elsewhere", "copy"), filepath.Join(scratch, "again")
	require.NoError(t, copyCheckout(t.Context(), elsewhere))
	require.NoError(t, makeRelease(t.Context(), elsewhere, current, out, "TZ=Pacific/Auckland", "LC_ALL=C", "MASK=077", "GOAMD64=v3"))
	assert.NotEmpty(t, first)
	assert.Equal(t, first, sumsOf(t, out))
}

// sumsOf returns the checksums of the files by their name.
func sumsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		sum := sha256.Sum256(content)
		all[e.Name()] = hex.EncodeToString(sum[:])
	}
	return all
}
