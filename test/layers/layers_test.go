// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ofTestsOnly are the modules that go.mod requires for tests.
var ofTestsOnly = []string{"github.com/cert-manager/cert-manager", "github.com/google/licensecheck", "github.com/google/pprof", "github.com/stretchr/testify", "go.opentelemetry.io/proto/otlp", "golang.org/x/sync", "google.golang.org/grpc", "gopkg.in/evanphx/json-patch.v4"}

// direct is a line of go.mod that requires a module, unless it is indirect.
var direct = regexp.MustCompile(`(?m)^(?:require )?\s*([\w.-]+\.[\w./-]+) v\S+$`)

// root is that of the module.
var root = filepath.Join("..", "..")

// productImports returns what the packages outside test and frameworktest import, relative to the module if
// it is in there. Tests and other modules do not count. It reads the files itself, so that go test knows what
// its result depends on.
func productImports(t *testing.T) (own map[string][]string, others []string) {
	t.Helper()
	own = map[string][]string{}
	require.NoError(t, filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if rel != "." && (rel == "test" || rel == "bin" || entry.Name() == "testdata" || entry.Name() == "frameworktest" || strings.HasPrefix(entry.Name(), ".") || isModule(file)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		from := filepath.ToSlash(filepath.Dir(rel))
		own[from] = append(own[from], []string{}...)
		for _, i := range parsed.Imports {
			to, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if below, ok := strings.CutPrefix(to, module+"/"); !ok {
				others = append(others, to)
			} else if !slices.Contains(own[from], below) {
				own[from] = append(own[from], below)
			}
		}
		return nil
	}))
	require.NotEmpty(t, own)
	return own, others
}

// isModule returns whether the folder contains another module, such as client.
func isModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil
}

// box is a package, or a pattern of packages, in the diagram of docs/contributing/design.md.
var box = regexp.MustCompile(`class="b">([a-z0-9/*-]+)<`)

func TestDiagram_ContainsEveryPackage(t *testing.T) {
	svg, err := os.ReadFile(filepath.Join(root, "docs", "images", "packages.svg"))
	require.NoError(t, err)
	var boxes []string
	for _, m := range box.FindAllStringSubmatch(string(svg), -1) {
		boxes = append(boxes, m[1], strings.TrimSuffix(m[1], "/*"))
	}
	own, _ := productImports(t)
	for name := range own {
		parts := strings.Split(name, "/")
		short := strings.Join(parts[:min(len(parts), 2)], "/")
		assert.True(t, matches(boxes, short), "docs/images/packages.svg has no box for %s", short)
	}
}

// Every import of the program points down.
func TestLayers(t *testing.T) {
	own, _ := productImports(t)
	assert.Empty(t, violations(layers(), own))
}

// go.mod requires nothing for tests alone, but for what is listed here: other libraries
// that only tests need are in modules of their own.
func TestRequirements(t *testing.T) {
	_, imported := productImports(t)
	file, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	var unused []string
	for _, r := range direct.FindAllStringSubmatch(string(file), -1) {
		if !slices.ContainsFunc(imported, func(p string) bool { return p == r[1] || strings.HasPrefix(p, r[1]+"/") }) {
			unused = append(unused, r[1])
		}
	}
	assert.Equal(t, ofTestsOnly, unused, "requirements that the program does not import")
}
