// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// TestWritingAPlugin_Compiles compiles the plugin of docs/writing-a-plugin.md and runs its test.
func TestWritingAPlugin_Compiles(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs/writing-a-plugin.md"))
	require.NoError(t, err)
	blocks := goBlock.FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 3, "plugin, main, and test")

	mutators, err := os.ReadFile(filepath.Join(root, "docs/mutators.md"))
	require.NoError(t, err)
	rack, err := os.ReadFile(filepath.Join(root, "docs/example/rack/rack.go"))
	require.NoError(t, err)
	ofMutator := goBlock.FindAllStringSubmatch(string(mutators), -1)
	require.NotEmpty(t, ofMutator)
	for _, block := range ofMutator {
		assert.Contains(t, string(rack), block[1])
	}

	// The overlay replaces the files of the example, so that no folder has to be created.
	const folder = "docs/example/after"
	replace := map[string]string{filepath.Join(root, folder, "after.go"): "", filepath.Join(root, folder, "after_test.go"): ""}
	for file, block := range map[string]int{"plugin.go": 0, "plugin_test.go": 2} {
		path := filepath.Join(t.TempDir(), file)
		require.NoError(t, os.WriteFile(path, []byte(blocks[block][1]), 0o600))
		replace[filepath.Join(root, folder, file)] = path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(path, overlay, 0o600))

	command := exec.CommandContext(t.Context(), "go", "test", "-overlay", path, "./"+folder)
	command.Dir = root
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
