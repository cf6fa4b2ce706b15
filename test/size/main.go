// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command size counts the code and the documentation of the repository.
//
// A line of code contains more than a blank or a comment. Generated files do not count, and only Go does. Tests are files that end
// in _test.go, and everything below test/ and frameworktest/. Documentation is the words of all Markdown files.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
)

// parts are the parts of the product. A file belongs to the first part that has a prefix of its path.
var parts = []struct {
	name     string
	prefixes []string
	// target is the number of lines that the part should not exceed, or 0.
	target int
}{
	{"plugins", []string{"binder/plugins/"}, 5000},
	{"binder without plugins", []string{"binder/", "internal/work/", "internal/replica/", "internal/ledger/", "internal/notify/", "internal/nodecondition/", "internal/podstate/", "internal/text/", "internal/claimed/", "internal/volumes/"}, 3700},
	{"policy without its plugin", []string{"policy/", "internal/policy/"}, 2800},
	{"conformance", []string{"cmd/kubectl-prebind/internal/conformance/"}, 1000},
	{"other commands and set-up", []string{"cmd/", "internal/assembly/", "internal/telemetry/", "internal/apiclient/"}, 2500},
	{"webhook with certificates", []string{"webhook/", "internal/certificates/"}, 1700},
	{"mutators", []string{"mutators/", "internal/mutation/"}, 750},
	{"tasks", []string{"internal/tasks/"}, 500},
	{"kit and examples of handlers", []string{"client/handler/", "docs/example/handlers/"}, 700},
	{"the rest", []string{""}, 950},
}

const (
	productTarget, testTarget, wordTarget = 18000, 45000, 40000
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "size:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	listed, err := exec.CommandContext(ctx, "git", "ls-files", "-z").Output()
	if err != nil {
		return fmt.Errorf("listing the files of the repository: %w", err)
	}
	product := make([]int, len(parts))
	total, tests, words := 0, 0, 0
	for name := range strings.SplitSeq(strings.TrimSuffix(string(listed), "\x00"), "\x00") {
		goFile, page := strings.HasSuffix(name, ".go"), strings.HasSuffix(name, ".md")
		if !goFile && !page {
			continue
		}
		content, err := os.ReadFile(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // Deleted, but not committed.
		case err != nil:
			return err
		case page:
			words += len(bytes.Fields(content))
		case generated(name, content):
		case strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test/") || strings.Contains(name, "/frameworktest/") || strings.Contains(name, "/testdata/"):
			tests += lines(content)
		default:
			n := lines(content)
			total += n
			for i, p := range parts {
				if slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
					product[i] += n
					break
				}
			}
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tnow\ttarget\t")
	fmt.Fprintf(w, "product\t%d\t%d\t\n", total, productTarget)
	for i, p := range parts {
		fmt.Fprintf(w, "%s\t%d\t%d\t\n", p.name, product[i], p.target)
	}
	fmt.Fprintf(w, "tests and harness\t%d\t%d\t\n", tests, testTarget)
	fmt.Fprintf(w, "words of documentation\t%d\t%d\t\n", words, wordTarget)
	return w.Flush()
}

// generated returns whether the file contains the standard comment of generated code.
func generated(name string, content []byte) bool {
	file, err := parser.ParseFile(token.NewFileSet(), name, content, parser.PackageClauseOnly|parser.ParseComments)
	return err == nil && ast.IsGenerated(file)
}

// lines counts the lines that contain a token other than a comment. A raw string has all of its lines.
func lines(content []byte) int {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(content))
	var s scanner.Scanner
	s.Init(file, content, nil, 0)
	count, last := 0, 0
	for {
		pos, tok, literal := s.Scan()
		switch {
		case tok == token.EOF:
			return count
		case tok == token.SEMICOLON && literal == "\n": // Inserted by the scanner.
			continue
		}
		first := file.Line(pos)
		end := first + strings.Count(literal, "\n")
		count += end - max(first-1, last)
		last = max(last, end)
	}
}
