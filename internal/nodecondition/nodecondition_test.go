// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodecondition

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	all, err := Parse("GPUReady, DiskPressure!=True,Net == Unknown ,gpu.example.com/ok = False, Old != Unknown")
	require.NoError(t, err)
	assert.Equal(t, []Expectation{
		{Type: "DiskPressure", Not: true, Status: "True"},
		{Type: "GPUReady", Status: "True"},
		{Type: "Net", Status: "Unknown"},
		{Type: "Old", Not: true, Status: "Unknown"},
		{Type: "gpu.example.com/ok", Status: "False"},
	}, all)
	all, err = Parse(" ")
	require.NoError(t, err)
	assert.Empty(t, all)
}

func TestParse_Invalid(t *testing.T) {
	const badStatus = "must be a list of Type=Status: status must be True, False, or Unknown in "
	for name, tc := range map[string]struct{ reason, list, says string }{
		"BadStatus":    {reason: "statuses are written as in the API", list: "GPUReady=true", says: badStatus + `"GPUReady=true"`},
		"NoStatus":     {reason: "the status is missing", list: "GPUReady=", says: badStatus + `"GPUReady="`},
		"Negated":      {reason: "negation is for labels only", list: "!GPUReady", says: badStatus + `"!GPUReady"`},
		"Set":          {reason: "sets are for labels only", list: "GPUReady in (True)", says: badStatus + `"GPUReady in (True)"`},
		"NoType":       {reason: "the type is missing", list: "=True"},
		"EmptyItem":    {reason: "an item is empty", list: "GPUReady,"},
		"BadType":      {reason: "the type is not a valid name", list: "GPU Ready"},
		"TwoOperators": {reason: "the item is ambiguous", list: "A!==True"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(tc.list)
			require.ErrorContains(t, err, "must be a list of Type=Status: ", tc.reason)
			assert.ErrorContains(t, err, tc.says, tc.reason)
		})
	}
}
