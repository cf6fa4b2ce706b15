// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseChecks(t *testing.T) {
	cases := map[string]struct {
		reason string
		names  []string
		want   Checks
		err    string
	}{
		"None":    {reason: "all checks can be disabled"},
		"All":     {reason: "CheckNames lists valid names", names: CheckNames(), want: all},
		"One":     {reason: "checks are independent", names: []string{"taints"}, want: Checks{Taints: true}},
		"Twice":   {reason: "a repeated name has no effect", names: []string{"ready", "ready"}, want: Checks{Ready: true}},
		"Unknown": {reason: "a typing error must not disable a check", names: []string{"ready", "taint"}, err: "ready, schedulable, taints, affinity"},
		"Empty":   {reason: "an empty name is unknown", names: []string{""}, err: `""`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseChecks(tc.names)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
	CheckNames()[0] = "changed"
	assert.Equal(t, []string{"ready", "schedulable", "taints", "affinity"}, CheckNames())
}
