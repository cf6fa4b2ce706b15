// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// line returns the text as one line of at most MaxMessage bytes: control characters and line breaks become spaces.
func line(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, text))
	return clip(text, MaxMessage)
}

// clip returns at most limit bytes of valid text. It marks a cut with an ellipsis.
func clip(text string, limit int) string {
	const mark = "…"
	if len(text) <= limit {
		return text
	}
	end := max(limit-len(mark), 0)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}
