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
	for name, of := range map[string]struct {
		program program
		module  string
	}{
		"external-provisioner":                 {csiProvisioner, "github.com/kubernetes-csi/external-provisioner/v6"},
		"sig-storage-lib-external-provisioner": {controlPlane, "sigs.k8s.io/sig-storage-lib-external-provisioner/v13"},
	} {
		version, err := of.program.goCommand(t.Context(), "list", "-m", "-f", "{{.Version}}", of.module)
		require.NoError(t, err)
		assert.Contains(t, strings.Join(strings.Fields(string(page)), " "), " "+name+" "+version)
	}
}
