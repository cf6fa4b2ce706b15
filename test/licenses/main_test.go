// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestIdentify(t *testing.T) {
	t.Parallel()
	apache, err := os.ReadFile(filepath.Join("..", "..", "LICENSE"))
	require.NoError(t, err)
	const gpl = "This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public License " +
		"as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version."
	for name, tc := range map[string]struct {
		reason, text string
		want         []string
		fails        string
	}{
		"Accepted":  {reason: "the own license is accepted", text: string(apache), want: []string{"Apache-2.0"}},
		"Forbidden": {reason: "prebind would have to be under the GPL", text: gpl, fails: "is not one of"},
		"Both":      {reason: "a second license also applies", text: string(apache) + gpl, fails: "is not one of"},
		"Unknown":   {reason: "the terms are unknown", text: "Ask me before you use this.", fails: "0% of the text is a known license"},
		"Appended":  {reason: "additional terms can forbid the use", text: withTerms(string(apache)), fails: "of the text is a known license"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := identify([]byte(tc.text))
			if tc.fails != "" {
				require.ErrorContains(t, err, tc.fails, tc.reason)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}

// withTerms returns the license with other terms.
func withTerms(license string) string {
	return license + strings.Repeat(" You may not use the program on Sundays or sell it.", 400)
}

func TestDescribe_NoLicense(t *testing.T) {
	t.Parallel()
	assert.ErrorContains(t, describe(io.Discard, component{Dir: t.TempDir()}), "no license file")
}
