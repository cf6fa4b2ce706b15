// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"strings"
)

// paragraph is a text with single spaces between words.
type paragraph struct {
	// line is that of its first word.
	line int
	text string
}

// extract returns the prose of a file.
func extract(name string, content []byte) []paragraph {
	switch path.Ext(name) {
	case ".go":
		return paragraphs(goProse(content))
	case ".md", ".gotmpl":
		return paragraphs(pageProse(string(content)))
	}
	return paragraphs(marks.ReplaceAllString(string(content), ""))
}

// separator ends a paragraph. It stands for code, and is between the cells of a table.
const separator = "|"

// paragraphs splits prose at empty lines and separators.
func paragraphs(prose string) []paragraph {
	var all []paragraph
	begins := true
	number := 0
	for line := range strings.SplitSeq(prose, "\n") {
		number++
		begins = begins || strings.TrimSpace(line) == ""
		for i, part := range strings.Split(line, separator) {
			begins = begins || i > 0
			text := strings.Join(strings.Fields(part), " ")
			switch {
			case text == "":
			case begins:
				all = append(all, paragraph{line: number, text: text})
				begins = false
			default:
				all[len(all)-1].text += " " + text
			}
		}
	}
	return all
}

var (
	// directive matches comments for tools, such as //go:embed. A nolint comment contains a reason, which is prose.
	directive = regexp.MustCompile(`^//(go:|line |export |\+|nolint:[\w,]+$)`)
	fence     = regexp.MustCompile("^ *```")
	code      = regexp.MustCompile("`[^`]*`")
	link      = regexp.MustCompile(`\]\([^)]*\)`)
	heading   = regexp.MustCompile(`^#+`)
	// marks are those of comments and of indentation.
	marks = regexp.MustCompile(`(?m)^[ \t#]+`)
)

// goProse returns the comments and string literals of a Go file on their lines. Literals that are joined with + are one text.
func goProse(content []byte) string {
	file := token.NewFileSet().AddFile("", -1, len(content))
	var s scanner.Scanner
	s.Init(file, content, nil, scanner.ScanComments)
	var out strings.Builder
	last := 0
	for {
		pos, tok, literal := s.Scan()
		at := file.Offset(pos)
		out.Write(content[last:at]) // White space.
		last = at + len(literal)
		switch {
		case tok == token.EOF:
			return out.String()
		case tok == token.SEMICOLON && literal == "\n": // The scanner inserts it before the end of the line.
			out.WriteString(separator)
			last = at
		case tok == token.COMMENT && !directive.MatchString(literal):
			out.WriteString(code.ReplaceAllString(strings.Trim(literal, "/*"), "code"))
		case tok == token.STRING:
			out.WriteString(strings.Trim(literal, "`\""))
		case tok.IsOperator():
			last = at + len(tok.String())
			if tok != token.ADD {
				out.WriteString(separator)
			}
		default:
			out.WriteString(separator)
		}
	}
}

// pageProse returns a page without code and link targets. A heading is a paragraph of its own.
func pageProse(page string) string {
	fenced := false
	lines := strings.Split(page, "\n")
	for i, l := range lines {
		switch {
		case fence.MatchString(l):
			fenced = !fenced
			l = ""
		case fenced:
			l = ""
		}
		l = link.ReplaceAllString(code.ReplaceAllString(l, "code"), "]")
		if heading.MatchString(l) {
			l = separator + heading.ReplaceAllString(l, "") + separator
		}
		lines[i] = strings.TrimLeft(l, " -*>")
	}
	return strings.Join(lines, "\n")
}
