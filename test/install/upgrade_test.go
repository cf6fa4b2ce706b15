// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/cluster"
)

// TestExtract checks that a commit is extracted once, and the error for a clone without it.
func TestExtract(t *testing.T) {
	t.Setenv(cluster.CacheEnv, t.TempDir())
	dir, err := Extract(t.Context(), "HEAD")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "go.mod"))
	require.NoError(t, os.Remove(filepath.Join(dir, "LICENSE")))
	again, err := Extract(t.Context(), "HEAD")
	require.NoError(t, err)
	assert.Equal(t, dir, again)
	assert.NoFileExists(t, filepath.Join(dir, "LICENSE"), "the files should not be extracted again")

	const missing = "0123456789012345678901234567890123456789"
	_, err = Extract(t.Context(), missing)
	assert.ErrorContains(t, err, missing+" is not in this clone: run 'git fetch --unshallow --tags'")
}
