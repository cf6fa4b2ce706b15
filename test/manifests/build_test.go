// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
