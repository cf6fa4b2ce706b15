// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRules_RejectBadAndAcceptGood(t *testing.T) {
	t.Parallel()
	rules, err := loadRules(ruleData)
	require.NoError(t, err)
	for _, r := range rules {
		t.Run(r.Match, func(t *testing.T) {
			t.Parallel()
			one := []rule{r}
			assert.NotEmpty(t, r.Write)
			assert.NotEmpty(t, check([]paragraph{{1, r.Bad}}, one), "the rule must reject %q", r.Bad)
			assert.Empty(t, check([]paragraph{{1, r.Good}}, one), "the rule must accept %q", r.Good)
		})
	}
}
