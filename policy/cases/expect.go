// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prebind/prebind/policy"
)

// differences returns a text for each difference. The first contains the complete result if the verdict differs.
func (e *Expectation) differences(got *policy.Result) []string {
	var all []string
	differ := func(field string, want, have any) {
		all = append(all, fmt.Sprintf("BindPolicy %s: %s\n  expected: %s\n  got:      %s", got.Policy, field, show(want), show(have)))
	}
	if e.Verdict != got.Verdict {
		differ("verdict", string(e.Verdict), describe(got))
		return all // The other fields depend on the verdict.
	}
	if e.Message != nil && *e.Message != got.Message {
		differ("message", *e.Message, got.Message)
	}
	if !strings.Contains(got.Message, e.MessageContains) {
		differ("messageContains", e.MessageContains, got.Message)
	}
	if e.Rule != nil && *e.Rule != got.Rule {
		differ("rule", *e.Rule, got.Rule)
	}
	if e.Annotations != nil && !maps.Equal(e.Annotations, got.Annotations) {
		differ("annotations", e.Annotations, got.Annotations)
	}
	if e.Labels != nil && !maps.Equal(e.Labels, got.Labels) {
		differ("labels", e.Labels, got.Labels)
	}
	if e.Waived != nil && !slices.Equal(e.Waived, got.Waived) {
		differ("waived", strings.Join(e.Waived, ", "), strings.Join(got.Waived, ", "))
	}
	return all
}

// describe returns the verdict with its reason.
func describe(r *policy.Result) string {
	text := string(r.Verdict)
	if r.Rule != "" {
		text += " (" + r.Rule + ")"
	}
	if r.Message != "" {
		text += ": " + r.Message
	}
	return text
}

// show returns the text of a value. Keys are sorted.
func show(value any) string {
	switch v := value.(type) {
	case string:
		if v == "" {
			return "(empty)"
		}
		return v
	case map[string]string:
		var lines []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			lines = append(lines, key+": "+v[key])
		}
		if len(lines) == 0 {
			return "(none)"
		}
		return strings.Join(lines, "\n            ")
	default:
		return fmt.Sprint(v)
	}
}
