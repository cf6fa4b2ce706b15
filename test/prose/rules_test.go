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

func TestCheckTree_FindsEveryKindOfText(t *testing.T) {
	t.Parallel()
	rules := []rule{}
	all, err := loadRules(ruleData)
	require.NoError(t, err)
	for _, r := range all {
		if r.Bad == "Besides, it is checked." || r.Bad == "No bind is under way." {
			rules = append(rules, r)
		}
	}
	for name, tc := range map[string]struct {
		reason  string
		file    string
		content string
		want    []int
	}{
		"Comment":     {reason: "comments are read by contributors", file: "a.go", content: "package a\n\n// F runs besides.\nfunc F() {}\n", want: []int{3}},
		"BrokenLine":  {reason: "a phrase may continue on the next line", file: "a.go", content: "package a\n\n// F is under\n// way.\nfunc F() {}\n", want: []int{3}},
		"Joined":      {reason: "a message may consist of several literals", file: "a.go", content: "package a\n\nconst m = \"under \" +\n\t\"way\"\n", want: []int{3}},
		"Raw":         {reason: "a raw literal has its own lines", file: "a.go", content: "package a\n\nvar m = `\nbesides`\n", want: []int{4}},
		"Nolint":      {reason: "the reason of a nolint comment is prose", file: "a.go", content: "package a\n\nvar m = 1 //nolint:all // besides\n", want: []int{3}},
		"Identifiers": {reason: "identifiers are not prose", file: "a.go", content: "package a\n\ntype under struct {\n\tway, besides int\n}\n"},
		"Page":        {reason: "code in a page is not prose", file: "a.md", content: "# Besides\n\n```\nbesides\n```\n`besides` [a](besides)\nbesides\n", want: []int{1, 6}},
		"Row":         {reason: "each row of a table is a text", file: "a.md", content: "| under |\n| way |\n| besides |\n", want: []int{3}},
		"Manifest":    {reason: "comments and values are prose", file: "a.yaml", content: "# besides\na: besides # it is under\n#   way\n", want: []int{1, 1, 1}},
		"Makefile":    {reason: "help texts are prose", file: "Makefile", content: "a: ## Run it besides\n", want: []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []int
			for _, v := range check(extract(tc.file, []byte(tc.content)), rules) {
				got = append(got, v.line)
			}
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}
