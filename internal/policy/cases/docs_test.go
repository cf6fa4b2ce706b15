// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/policy/cases"
	"github.com/prebind/prebind/internal/policy/files"
)

var (
	block    = regexp.MustCompile("(?s)```yaml\n(.*?)```")
	fileName = regexp.MustCompile(`^# (\S+/\S+\.yaml)\n`)
)

// TestDocs_Policies checks the policies of all pages, and tests those of docs/policy-recipes.md.
func TestDocs_Policies(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../../docs/*.md")
	require.NoError(t, err)
	all := map[string][]cases.File{}
	for _, page := range append(pages, "../../../README.md") {
		content, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range block.FindAllSubmatch(content, -1) {
			if !bytes.Contains(m[1], []byte("kind: BindPolicy\n")) {
				continue
			}
			documents, err := files.Parse(page, m[1])
			require.NoError(t, err)
			policies, err := files.Check(t.Context(), documents, policy.Options{})
			require.NoError(t, err)
			require.Len(t, policies, 1)
			assert.Empty(t, policies[0].Problems, "%s", m[1])
			name := filepath.Base(page)
			all[name] = append(all[name], cases.File{Name: policies[0].GetName() + ".yaml", Content: m[1]})
		}
	}
	assert.Len(t, all["tasks.md"], 1)

	tests := "testdata/patterns" + files.TestSuffix
	content, err := os.ReadFile(tests)
	require.NoError(t, err)
	r := cases.RunFiles(t.Context(), "docs", append(all["policy-recipes.md"], cases.File{Name: tests, Content: content}))
	var out strings.Builder
	require.NoError(t, r.WriteText(&out, false))
	assert.False(t, r.Failed(), out.String())
	assert.Empty(t, r.Uncovered())
}

// TestDocs runs the test of docs/policies.md with the policy, which fails, and with the corrected one, as the tutorial says.
func TestDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/policies.md")
	require.NoError(t, err)
	dir := t.TempDir()
	versions := map[string][]string{}
	for _, m := range block.FindAllSubmatch(page, -1) {
		content := m[1]
		name := fileName.FindSubmatch(content)
		assert.Equal(t, bytes.Contains(content, []byte("kind: BindPolicy")), name != nil, "each policy and test has a file: %s", content)
		if name == nil {
			continue
		}
		file := filepath.Join(dir, string(name[1]))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, content, 0o600))
		versions[string(name[1])] = append(versions[string(name[1])], string(content))
	}
	require.Len(t, versions["policies/placement.yaml"], 1)
	first := versions["policies/placement.yaml"][0]
	require.Contains(t, string(page), "$ sed -i.bak 's/metadata.labels/metadata.?labels/' policies/placement.yaml\n")
	tutorial := filepath.Join(dir, "policies")
	wait, waitTest := "wait-for-label.yaml", "wait-for-label_test.yaml"
	for _, later := range []string{wait, waitTest} { // The reader writes them later.
		require.NoError(t, os.Remove(filepath.Join(tutorial, later)))
		require.Len(t, versions["policies/"+later], 1)
	}
	passed := "ok    " + tutorial + "  2 cases\n"
	for i, step := range []struct{ file, content, want string }{
		{"placement.yaml", first, "FAIL  " + tutorial + "  2 cases, 1 failed\n"},
		{"placement.yaml", strings.Replace(first, "metadata.labels", "metadata.?labels", 1), passed},
		{wait, versions["policies/"+wait][0], passed},
		{waitTest, versions["policies/"+waitTest][0], "ok    " + tutorial + "  4 cases\n"},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(tutorial, step.file), []byte(step.content), 0o600))
		r, err := cases.Run(t.Context(), tutorial)
		require.NoError(t, err)
		var out strings.Builder
		require.NoError(t, r.WriteText(&out, false))
		assert.True(t, strings.HasSuffix(out.String(), step.want), out.String())
		if i == 0 {
			assert.Contains(t, out.String(), "got:      failed (spec.mutations.annotations[placement.policy.prebind.dev/host]): no such key: labels")
		}
	}
}
