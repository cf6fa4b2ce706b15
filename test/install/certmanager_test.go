// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The installation takes the CRDs from the module that go.mod requires, and the controllers are built from test/certmanager.
func TestCertManager_HasOneVersion(t *testing.T) {
	version := func(dir string) string {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", "github.com/cert-manager/cert-manager")
		cmd.Dir = dir
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	assert.Equal(t, version("."), version("../certmanager"))
}
