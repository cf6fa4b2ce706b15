// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInterleave(t *testing.T) {
	tests := map[string]struct {
		reason   string
		in, want []string
	}{
		"None":      {reason: "an empty list stays empty", want: nil},
		"OneGroup":  {reason: "a single group keeps its order", in: []string{"a1", "a2", "a3"}, want: []string{"a1", "a2", "a3"}},
		"TakeTurns": {reason: "a large group does not delay others", in: []string{"a1", "a2", "a3", "a4", "b1", "c1", "c2"}, want: []string{"a1", "b1", "c1", "a2", "c2", "a3", "a4"}},
		"ByFirst":   {reason: "groups have the order of their first items", in: []string{"b1", "a1", "b2"}, want: []string{"b1", "a1", "b2"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, Interleave(tc.in, func(item string) string { return item[:1] }), tc.reason)
		})
	}
}
