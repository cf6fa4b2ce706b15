// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/webhook"
)

// denialBlock is an example of a denial.
var denialBlock = regexp.MustCompile("(?s)<!-- denial: ([a-z-]+) -->\n```json\n(.*?)```")

// TestForSchedulers_Denials checks that the examples are denials of test/golden, as a client receives them.
func TestForSchedulers_Denials(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join(root, "client", "testdata", "denials.json"))
	require.NoError(t, err)
	var denials map[string]struct {
		Decision framework.Kind  `json:"decision"`
		Status   json.RawMessage `json:"status"`
	}
	require.NoError(t, json.Unmarshal(content, &denials))
	page := pagesOfProse(t)["docs/for-schedulers.md"]
	var shown []framework.Kind
	for _, m := range denialBlock.FindAllStringSubmatch(page, -1) {
		require.Contains(t, denials, m[1])
		assert.JSONEq(t, string(denials[m[1]].Status), m[2], m[1])
		shown = append(shown, denials[m[1]].Decision)
	}
	assert.Equal(t, []framework.Kind{framework.KindWait}, shown)
	assert.Len(t, shown, strings.Count(page, "```json\n"), "every JSON block needs the name of its denial")
}

// TestForSchedulers_Code checks that the Go code of the page is code of the module client, which compiles and tests it.
func TestForSchedulers_Code(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "client", "example_*_test.go"))
	require.NoError(t, err)
	var code strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		code.Write(content)
	}
	blocks := goBlock.FindAllStringSubmatch(pagesOfProse(t)["docs/for-schedulers.md"], -1)
	require.Len(t, blocks, 3, "Bind, Request, and a call without repeats")
	for _, block := range blocks {
		assert.Contains(t, code.String(), block[1])
	}
}

// TestForSchedulers_Values checks the numbers and names on which schedulers rely.
func TestForSchedulers_Values(t *testing.T) {
	t.Parallel()
	page := pagesOfProse(t)["docs/for-schedulers.md"]
	budgets := configuration.Default(&configuration.Registry{}).Budgets
	for _, text := range []string{
		fmt.Sprintf("- Hold of one call: %.0f s (`--hold`)", budgets.Hold.Seconds()),
		fmt.Sprintf("- Budget of a bind over all its calls: %.0f minutes (`--prebind-timeout`)", budgets.PreBindTimeout.Minutes()),
		fmt.Sprintf("`--max-prebind-timeout`, %.0f minutes\n", budgets.MaxPreBindTimeout.Minutes()),
		"- Repeats of one `Bind` by client-go: 10, so 11 calls",
		"- `details.retryAfterSeconds`: 1 to 38 for waiting,", // See TestRetryAfter of the binder.
		fmt.Sprintf("- Next call after a waiting answer: at the latest %.0f s after `Retry-After`", work.AbandonAfter.Seconds()),
		`"` + webhook.Name + `"`, "  - `" + string(webhook.CausePlugin) + "` (`CausePlugin`)", "  - `" + string(webhook.CauseObject) + "` (`CauseObject`)", "  - `" + string(webhook.CauseField) + "` (`CauseField`)",
		"| 412 `" + string(webhook.ReasonStale) + "`",
	} {
		assert.Contains(t, page, text)
	}
}
