// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// text is a paragraph: a comment, a string literal, or consecutive lines of another file.
type text struct {
	lines []line
}

type line struct {
	number int
	text   string
}

// join returns the text with single spaces between words, and a function that maps its offsets to line numbers.
func (t text) join() (string, func(offset int) int) {
	var out strings.Builder
	var starts []int
	for _, l := range t.lines {
		if out.Len() > 0 {
			out.WriteByte(' ')
		}
		starts = append(starts, out.Len())
		out.WriteString(strings.Join(strings.Fields(l.text), " "))
	}
	return out.String(), func(offset int) int {
		number := 0
		for i, start := range starts {
			if start <= offset {
				number = t.lines[i].number
			}
		}
		return number
	}
}

// extract returns the prose of a file.
func extract(name string, content []byte) ([]text, error) {
	switch path.Ext(name) {
	case ".go":
		return fromGo(name, content)
	case ".md", ".gotmpl":
		return fromMarkdown(string(content)), nil
	}
	return fromLines(string(content)), nil
}

// directive matches comments for tools, such as //go:embed. A nolint comment contains a reason, which is prose.
var directive = regexp.MustCompile(`^//(go:|line |export |\+|nolint:[\w,]+$)`)

// fromGo returns the comments and string literals of a Go file. Literals that are joined with + are one text.
func fromGo(name string, content []byte) ([]text, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, content, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var all []text
	add := func(start token.Pos, content string) {
		first := files.Position(start).Line
		all = append(all, paragraphs(content, first, strings.TrimSpace)...)
	}
	for _, group := range file.Comments {
		var kept strings.Builder
		for i, c := range group.List {
			if i > 0 {
				kept.WriteByte('\n')
			}
			if !directive.MatchString(c.Text) {
				kept.WriteString(strings.Trim(c.Text, "/*"))
			}
		}
		add(group.Pos(), code.ReplaceAllString(kept.String(), "code"))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			if n.Tag != nil {
				n.Tag.Value = "``"
			}
		case ast.Expr:
			if value, ok := literal(n); ok {
				add(n.Pos(), value)
				return false
			}
		}
		return true
	})
	return all, nil
}

// literal returns the value of a string literal or of a sum that contains one.
func literal(expr ast.Expr) (string, bool) {
	switch expr := expr.(type) {
	case *ast.BasicLit:
		if expr.Kind != token.STRING {
			return "", false
		}
		value, err := strconv.Unquote(expr.Value)
		return value, err == nil
	case *ast.BinaryExpr:
		left, isLeft := literal(expr.X)
		right, isRight := literal(expr.Y)
		if expr.Op != token.ADD || !isLeft || !isRight {
			return "", false
		}
		return left + right, true
	}
	return "", false
}

var (
	fence = regexp.MustCompile("^ *```")
	code  = regexp.MustCompile("`[^`]*`")
	link  = regexp.MustCompile(`\]\([^)]*\)`)
)

// fromMarkdown returns the paragraphs of a page without code and link targets.
func fromMarkdown(page string) []text {
	fenced := false
	return paragraphs(page, 1, func(l string) string {
		switch {
		case fence.MatchString(l):
			fenced = !fenced
			return ""
		case fenced:
			return ""
		}
		l = link.ReplaceAllString(code.ReplaceAllString(l, "code"), "]")
		if trimmed := strings.TrimSpace(l); strings.HasPrefix(trimmed, "|") || strings.HasPrefix(trimmed, "#") {
			return trimmed + "\n" // a row or heading is a paragraph of its own
		}
		return strings.TrimLeft(l, " -*>")
	})
}

// fromLines returns the paragraphs of a file of another kind, without the marks of comments.
func fromLines(content string) []text {
	return paragraphs(content, 1, func(l string) string { return strings.TrimLeft(l, " \t#") })
}

// paragraphs splits content at empty lines. clean is called on each line; a line that it ends with a line feed stands alone.
func paragraphs(content string, first int, clean func(string) string) []text {
	var all []text
	var current text
	end := func() {
		if len(current.lines) > 0 {
			all, current = append(all, current), text{}
		}
	}
	number := first
	for l := range strings.SplitSeq(content, "\n") {
		cleaned := clean(l)
		alone := strings.HasSuffix(cleaned, "\n")
		if alone || strings.TrimSpace(cleaned) == "" {
			end()
		}
		if strings.TrimSpace(cleaned) != "" {
			current.lines = append(current.lines, line{number, cleaned})
		}
		if alone {
			end()
		}
		number++
	}
	end()
	return all
}
