// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadme checks that docs/performance shows the data next to it, and that every row has data. The data contains every kind of row,
// so this also checks the calculations.
func TestReadme(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "docs", "performance")
	data, err := read(filepath.Join(dir, "data"))
	require.NoError(t, err)
	results := resultsOf(data)
	assert.Len(t, results, len(table()), "every row has data")
	files, err := written(filepath.Join(dir, "README.md"), data, results)
	require.NoError(t, err)
	for path, want := range files {
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, string(want), string(kept), "%s: run 'make bench-keep'", path)
	}
}
