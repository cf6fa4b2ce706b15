// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package text makes text of users fit into messages.
package text

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Shorten returns the list with at most that many items. A longer list ends with "and N more". It does not change the list.
func Shorten(list []string, most int) []string {
	if len(list) <= most {
		return list
	}
	return append(slices.Clone(list[:most]), fmt.Sprintf("and %d more", len(list)-most))
}

// Clip makes a user's text safe for a message of one line, which API servers and terminals show as it is: it replaces characters
// that are not printable, and shortens the text to at most that many bytes, the ellipsis included.
func Clip(s string, most int) string {
	const ellipsis = "…"
	cut := len(s) > most
	if cut {
		s = s[:max(most-len(ellipsis), 0)]
	}
	shown := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		default:
			return '?'
		}
	}, strings.ToValidUTF8(s, ""))
	if cut {
		shown += ellipsis
	}
	return shown
}

// Lines makes text of several lines safe for a terminal: it replaces characters that are not printable in each line, like Clip.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Clip(line, len(line))
	}
	return strings.Join(lines, "\n")
}
