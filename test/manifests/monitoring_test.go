// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/metrics"
)

// TestMonitoringNames checks that alerts and panels query only metrics that exist. test/monitoring evaluates them.
func TestMonitoringNames(t *testing.T) {
	raw, err := kustomize(t.Context(), "config/webhook/monitoring")
	require.NoError(t, err)
	existing, err := metrics.All()
	require.NoError(t, err)
	series := map[string]bool{}
	for _, m := range existing {
		for _, name := range m.Series() {
			series[name] = true
		}
	}
	used := regexp.MustCompile(`prebind_\w+`).FindAllString(string(raw), -1)
	slices.Sort(used)
	for _, name := range slices.Compact(used) {
		assert.True(t, series[name], "%s is queried, and is none of the metrics of docs/metrics.md", name)
	}
}
