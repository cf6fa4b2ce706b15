// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	commit   = regexp.MustCompile(`^[0-9a-f]{8}$`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	mutant   = regexp.MustCompile(`(?m)^\t\{"([^"]+)", "`)
)

// reproducers returns how the robustness report names each test and each mutant.
func reproducers(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{"–": true, "removed": true}
	for name, content := range filesOf(t, "_test.go") {
		for _, m := range testFunc.FindAllStringSubmatch(content, -1) {
			all[path.Dir(name)+" "+m[1]] = true
		}
	}
	content, err := os.ReadFile(path.Join(root, "test/simulation/mutants/main.go"))
	require.NoError(t, err)
	for _, m := range mutant.FindAllSubmatch(content, -1) {
		all[fmt.Sprintf("mutant %s", m[1])] = true
	}
	return all
}

// TestRobustness checks that the tests and mutants of the report exist, and its counts. CI has no history in which it could find the commits.
func TestRobustness(t *testing.T) {
	t.Parallel()
	page := strings.Join(strings.Fields(pagesOfProse(t)["docs/contributing/robustness.md"]), " ")
	content, err := os.ReadFile(path.Join(root, "docs/contributing/robustness.csv"))
	require.NoError(t, err)
	rows, err := csv.NewReader(bytes.NewReader(content)).ReadAll()
	require.NoError(t, err)
	known, found := reproducers(t), map[string]int{}
	for _, row := range rows[1:] {
		effect, text, by, since, fixed, reproduced := row[0], row[1], row[2], row[3], row[4], row[5]
		assert.Contains(t, strings.ToLower(page), strings.ToLower(effect), "%s: unknown effect", text)
		by, _, _ = strings.Cut(by, ", ") // The seed.
		found[by]++
		assert.True(t, since == "–" || commit.MatchString(since), "%s: Since has to be a commit, not %q", text, since)
		assert.Regexp(t, commit, fixed, "%s: Fixed in has to be a commit", text)
		assert.True(t, known[reproduced], "%s: unknown test or mutant %s", text, reproduced)
	}
	line := regexp.MustCompile(`\*\*Found by:\*\* (.*) \(–`).FindStringSubmatch(page)
	require.NotNil(t, line)
	var counts []string
	for _, by := range slices.Sorted(maps.Keys(found)) {
		counts = append(counts, fmt.Sprintf("%s %d", by, found[by]))
	}
	assert.ElementsMatch(t, counts, strings.Split(line[1], ", "), "the counts of the methods")
}
