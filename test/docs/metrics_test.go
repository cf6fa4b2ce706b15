// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/metrics"
)

func TestMetricsDocument(t *testing.T) {
	var out strings.Builder
	require.NoError(t, writeMetrics(&out))
	committed, err := os.ReadFile(filepath.Join("..", "..", "docs", "metrics.md"))
	require.NoError(t, err)
	assert.Equal(t, string(committed), out.String(), "run 'make generate'")
	all, err := metrics.All()
	require.NoError(t, err)
	for _, m := range all {
		assert.Contains(t, out.String(), "- `"+m.Name+"` (", "every metric is in the list")
	}
	names := map[string]bool{}
	for _, m := range all {
		names[m.Name] = true
	}
	for _, name := range regexp.MustCompile(`prebind_[a-z_]+`).FindAllString(metricsIntro, -1) {
		assert.True(t, names[name], "the text contains %s, which is not a metric", name)
	}
}
