// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, content, problem string
		names                    []string
	}{
		"Empty":    {reason: "an empty file has no objects", content: ""},
		"Comments": {reason: "a document of comments has no object", content: "# comment\n---\n# comment\n"},
		"Several":  {reason: "documents are separated by ---", content: "# licence\n---\napiVersion: v1\nkind: Node\nmetadata: {name: a}\n--- # second\napiVersion: v1\nkind: Node\nmetadata: {name: b}\n", names: []string{"a", "b"}},
		"JSON":     {reason: "JSON is YAML", content: `{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}`, names: []string{"a"}},
		"List":     {reason: "the output of kubectl get is a list", content: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: a}\n- apiVersion: v1\n  kind: Node\n  metadata: {name: b}\n", names: []string{"a", "b"}},
		"Syntax":   {reason: "the line of a syntax error is that of the file", content: "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Node: x\n", names: []string{"a"}, problem: "f.yaml:6: "},
		"Lines":    {reason: "each line is that of the file", content: "---\nkind: Node\nkind: Pod\nkind: Pod\n", problem: `f.yaml:3: key "kind" already set in map line 4: `},
		"Scalar":   {reason: "a text is not an object", content: "\nhello\n", problem: "f.yaml:2: not a Kubernetes object"},
		"NoKind":   {reason: "an object without kind is not a Kubernetes object", content: "apiVersion: v1\nmetadata: {name: a}\n", problem: "f.yaml:1: not a Kubernetes object: apiVersion and kind are required"},
		"BadItem":  {reason: "the items of a list are objects", content: "apiVersion: v1\nkind: List\nitems: [{a: b}]\n", problem: "items[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			documents, err := Parse("f.yaml", []byte(tc.content))
			assert.Equal(t, tc.names, namesOf(documents), tc.reason)
			if tc.problem == "" {
				assert.NoError(t, err, tc.reason)
				return
			}
			require.ErrorContains(t, err, tc.problem, tc.reason)
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
		})
	}
}

// The memory grows with the file, not with the number of documents and their lines: 20,000 documents needed 2 GB.
func TestParse_Memory(t *testing.T) {
	content := []byte(strings.Repeat("---\napiVersion: v1\nkind: Node\nmetadata: {name: a}\n"+strings.Repeat("#\n", 500), 500))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	documents, err := Parse("f.yaml", content)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Len(t, documents, 500)
	assert.Equal(t, "f.yaml:251500", documents[499].At("metadata.name"))
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100*len(content)))
}

const twoPolicies = `# Licence
---
apiVersion: policy.prebind.dev/v1alpha1
kind: BindPolicy
metadata:
  name: first
spec:
  waitFor:
    - name: driver
      expression: "true"
---
apiVersion: v1
kind: List
items:
- apiVersion: policy.prebind.dev/v1alpha1
  kind: BindPolicy
  metadata: {name: second}
  spec:
    mutations:
      annotations:
      - key: rack
        valueExpression: "'a'"
`

func TestDocument_At(t *testing.T) {
	documents, err := Parse("f.yaml", []byte(twoPolicies))
	require.NoError(t, err)
	require.Len(t, documents, 2)
	first, second := documents[0], documents[1]
	for path, want := range map[string]string{
		"": "f.yaml:3", "metadata.name": "f.yaml:6", "spec.waitFor[0].expression": "f.yaml:10",
		"spec.waitFor[0].message": "f.yaml:9", "spec.nothing": "f.yaml:7", "nothing": "f.yaml:3",
	} {
		assert.Equal(t, want, first.At(path), "path %q", path)
	}
	assert.Equal(t, "f.yaml:15", second.At(""))
	assert.Equal(t, "f.yaml:22", second.At("spec.mutations.annotations[0].valueExpression"), "lines of list items are those of the file")
}

func TestDocument_AtAlias(t *testing.T) {
	const items = "- apiVersion: v1\n  kind: Node\n  metadata:\n    name: a\n"
	for name, tc := range map[string]struct {
		reason, content, at, name, key string
	}{
		"Items": {
			reason:  "the fields of an alias are those of its anchor",
			content: "old: &l\n" + items + "apiVersion: v1\nkind: List\nitems: *l\n",
			at:      "f.yaml:2", name: "f.yaml:5", key: "f.yaml:4",
		},
		"Field": {
			reason:  "a field can be an alias",
			content: "old: &m\n  name: a\napiVersion: v1\nkind: Node\nmetadata: *m\n",
			at:      "f.yaml:1", name: "f.yaml:2", key: "f.yaml:5",
		},
	} {
		t.Run(name, func(t *testing.T) {
			documents, err := Parse("f.yaml", []byte(tc.content))
			require.NoError(t, err)
			require.Len(t, documents, 1)
			assert.Equal(t, "a", documents[0].GetName())
			assert.Equal(t, tc.at, documents[0].At(""), tc.reason)
			assert.Equal(t, tc.name, documents[0].At("metadata.name"), tc.reason)
			assert.Equal(t, tc.key, documents[0].At("metadata.nothing"), tc.reason)
		})
	}
}

func namesOf(documents []*Document) []string {
	var names []string
	for _, d := range documents {
		names = append(names, d.GetName())
	}
	return names
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"b.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: b}\n", "a.yml": "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n",
		"c.json": `{"apiVersion":"v1","kind":"Node","metadata":{"name":"c"}}`, "case_test.yaml": "x", "case_test.yml": "x", "sub.yaml/d.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: d}\n", ".git/e.yaml": "x", "README.md": "x", "bad.yaml": "x",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	for _, path := range []string{dir, link} {
		documents, problems, err := Read(strings.NewReader("apiVersion: v1\nkind: Node\nmetadata: {name: in}\n"), path, "-")
		require.NoError(t, err)
		assert.Equal(t, []string{"a", "b", "c", "d", "in"}, namesOf(documents), "files are read in the order of their names, without tests and hidden directories")
		require.ErrorContains(t, problems, "bad.yaml:1: ", "a file that is not valid does not prevent that others are read")
		assert.NotContains(t, problems.Error(), "\n")
	}

	_, _, err := Read(nil, filepath.Join(dir, "missing.yaml"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestTestDirs(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b/x_test.yaml", "b/y_test.yaml", "a/c/x_test.yml", "a/policy.yaml"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	dirs, err := TestDirs(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{filepath.Join(dir, "a", "c"), filepath.Join(dir, "b")}, dirs)
	_, err = TestDirs(filepath.Join(dir, "missing"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(twoPolicies))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: [1]\n---\n- a\n--- {a: b}\n"))
	f.Add([]byte("old: &l\n- {apiVersion: v1, kind: Node}\napiVersion: v1\nkind: List\nitems: *l\n"))
	f.Add([]byte("old: &l\n  items: [{apiVersion: v1, kind: Node}]\n<<: *l\napiVersion: v1\nkind: List\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		documents, err := Parse("f.yaml", content)
		for _, d := range documents {
			if d.GroupVersionKind().Kind == "" || !strings.HasPrefix(d.At("metadata.name"), "f.yaml:") {
				t.Errorf("invalid document %v", d.Object)
			}
		}
		if err != nil && !strings.HasPrefix(err.Error(), "f.yaml:") {
			t.Errorf("error without place: %v", err)
		}
	})
}
