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

func TestIncompatible(t *testing.T) {
	t.Parallel()
	const before = "# comment\n\nflag prebind --a | string\nkey prebind.dev/a\n"
	for name, tc := range map[string]struct {
		reason, now string
		want        []string
	}{
		"Same":    {reason: "the list is in force", now: before},
		"Added":   {reason: "a new item breaks nothing", now: before + "key prebind.dev/b\n"},
		"Missing": {reason: "pods have the annotation", now: "flag prebind --a | string\n", want: []string{"key prebind.dev/a: missing"}},
		"Changed": {
			reason: "a Deployment sets the flag", now: "flag prebind --a | bool\nkey prebind.dev/a\n",
			want: []string{`flag prebind --a: was "string", is "bool"`},
		},
		"Renamed": {reason: "a new name does not replace the old one", now: "flag prebind --b | string\nkey prebind.dev/a\n", want: []string{"flag prebind --a: missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tc.want, incompatible(parse(before), parse(tc.now)), tc.reason)
		})
	}
}

// TestList checks the committed list, and that the loss of an item of any category is reported.
func TestList(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	committed, err := os.ReadFile(list)
	require.NoError(t, err)
	now, err := collect(t.Context())
	require.NoError(t, err)
	assert.Empty(t, incompatible(parse(string(committed)), now), "see docs/api-policy.md")
	assert.Equal(t, now, parse(now.String()))

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
