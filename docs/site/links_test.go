// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package site

import (
	"bytes"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

const (
	root = "../.."
	// The output of make site.
	site       = root + "/bin/site"
	repository = "https://github.com/prebind/prebind/"
)

// document is an HTML file: what links to it can name, and its own links.
type document struct {
	anchors map[string]bool
	links   []string
}

// documents returns the HTML files of the site by their paths on the host.
func documents(t *testing.T) map[string]document {
	t.Helper()
	found := map[string]document{}
	files := os.DirFS(site)
	require.NoError(t, fs.WalkDir(files, ".", func(name string, _ fs.DirEntry, err error) error {
		// The playground is an application, with tests of its own.
		if err != nil || path.Ext(name) != ".html" || strings.HasPrefix(name, "playground/") {
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		root, err := html.Parse(bytes.NewReader(content))
		if err != nil {
			return err
		}
		parsed := document{anchors: map[string]bool{}}
		for node := range root.Descendants() {
			for _, attribute := range node.Attr {
				switch attribute.Key {
				case "id":
					parsed.anchors[attribute.Val] = true
				case "href", "src":
					parsed.links = append(parsed.links, attribute.Val)
				}
			}
		}
		found["/"+name] = parsed
		return nil
	}), "run make site first")
	require.NotEmpty(t, found)
	return found
}

// TestLinks checks that every link leads to a file, and to an anchor in it. Other hosts are not read.
func TestLinks(t *testing.T) {
	pages := documents(t)
	for name, page := range pages {
		for _, link := range page.links {
			reference, err := url.Parse(link)
			if !assert.NoError(t, err, "%s", name) {
				continue
			}
			if file, ok := strings.CutPrefix(link, repository); ok {
				checkRepository(t, name, file)
			}
			target := (&url.URL{Path: name}).ResolveReference(reference)
			if target.Host != "" || target.Scheme != "" {
				continue
			}
			if strings.HasSuffix(target.Path, "/") {
				target.Path += "index.html"
			}
			assert.FileExists(t, filepath.Join(site, target.Path), "%s: link to %s", name, link)
			if linked, ok := pages[target.Path]; ok && target.Fragment != "" {
				assert.True(t, linked.anchors[target.Fragment], "%s: link to %s: no such anchor", name, link)
			}
		}
	}
}

// checkRepository checks a link to a file of the main branch, such as blob/main/Makefile.
func checkRepository(t *testing.T, page, link string) {
	t.Helper()
	view, file, _ := strings.Cut(link, "/main/")
	switch view {
	case "blob", "tree", "edit":
		file, _, _ = strings.Cut(file, "#")
		_, err := os.Stat(filepath.Join(root, file))
		assert.NoError(t, err, "%s: link to %s", page, link)
	}
}
