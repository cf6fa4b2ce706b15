// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const bindPolicyCRD = "../../config/webhook/plugins/policy/crd.yaml"

func TestPoliciesDocument(t *testing.T) {
	var out strings.Builder
	require.NoError(t, writePolicies(&out, bindPolicyCRD))
	committed, err := os.ReadFile(filepath.Join(root, "docs", "policies-reference.md"))
	require.NoError(t, err)
	assert.Equal(t, string(committed), out.String(), "run 'make generate'")
}

func TestPoliciesDocument_Errors(t *testing.T) {
	several := filepath.Join(t.TempDir(), "crd.yaml")
	require.NoError(t, os.WriteFile(several, []byte("spec: {versions: [{}, {}]}"), 0o600))
	assert.ErrorContains(t, writePolicies(&strings.Builder{}, several), "must have one version, has 2")
	assert.ErrorIs(t, writePolicies(&strings.Builder{}, several+".missing"), os.ErrNotExist)
}
