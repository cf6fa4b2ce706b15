// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package text

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestClip(t *testing.T) {
	cases := map[string]struct {
		reason, text, want string
		most               int
	}{
		"Short":    {reason: "short text does not change", text: "a ü 世", most: 10, want: "a ü 世"},
		"Long":     {reason: "an ellipsis marks the cut", text: "abcdefg", most: 6, want: "abc…"},
		"Unicode":  {reason: "the cut is between characters", text: "aüüü", most: 6, want: "aü…"},
		"Controls": {reason: "control characters are replaced", text: "a\nb\x1b[1m\u202ec", most: 50, want: "a b?[1m?c"},
		"NotUTF8":  {reason: "invalid UTF-8 is left out", text: "a\xffb", most: 50, want: "ab"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, Clip(tc.text, tc.most), tc.reason)
		})
	}
}

func TestLines(t *testing.T) {
	assert.Equal(t, "a?[2J\n  ü …\n", Lines("a\x1b[2J\n \rü …\n"), "only the lines stay")
}
