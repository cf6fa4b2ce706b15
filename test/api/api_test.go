// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestList checks the committed list, and that the loss of an item of any category and a change of an item are reported.
func TestList(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	committed, err := os.ReadFile(list)
	require.NoError(t, err)
	now, err := collect(t.Context())
	require.NoError(t, err)
	assert.Empty(t, incompatible(parse(string(committed)), now), "see docs/api-policy.md")
	assert.Equal(t, now, parse(now.String()))

	assert.Equal(t, []string{`flag prebind --a: was "string", is "bool"`}, incompatible(parse("# comment\n\nflag prebind --a | string\n"), parse("flag prebind --a | bool\n")))

	lost := map[string]string{}
	for key := range now {
		category, _, _ := strings.Cut(key, " ")
		lost[category] = key
	}
	for category, key := range lost {
		rest := maps.Clone(now)
		delete(rest, key)
		assert.Equal(t, []string{key + ": missing"}, incompatible(now, rest), category)
	}
	for _, category := range []string{
		"audit-annotation", "cause", "chart-value", "command", "config", "crd", "denial", "exit-code", "flag", "go", "json", "key",
		"kustomization", "metric", "metric-label", "mutator", "object", "plugin", "reason", "trace-attribute", "webhook",
	} {
		assert.Contains(t, lost, category)
	}
}
