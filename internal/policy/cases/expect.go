// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/internal/policy"
)

// differences returns a text for each difference. The first contains the complete result if the verdict differs.
func (e *Expectation) differences(got *policy.Result) []string {
	var all []string
	report := func(field, want, have string) {
		all = append(all, fmt.Sprintf("BindPolicy %s: %s\n  expected: %s\n  got:      %s", got.Policy, field, want, have))
	}
	if e.Verdict != got.Verdict {
		report("verdict", string(e.Verdict), describe(got))
		return all // The other fields depend on the verdict.
	}
	text := func(field string, equal bool, want, have string) {
		if !equal {
			report(field, strconv.Quote(want), strconv.Quote(have))
		}
	}
	values := func(field string, want, have map[string]string) {
		if want != nil && !maps.Equal(want, have) {
			report(field, show(want, have, "missing"), show(have, want, "not expected"))
		}
	}
	text("message", e.Message == nil || *e.Message == got.Message, ptr.Deref(e.Message, ""), got.Message)
	text("messageContains", strings.Contains(got.Message, e.MessageContains), e.MessageContains, got.Message)
	text("rule", e.Rule == nil || *e.Rule == got.Rule, ptr.Deref(e.Rule, ""), got.Rule)
	values("annotations", e.Annotations, got.Annotations)
	values("labels", e.Labels, got.Labels)
	text("waived", e.Waived == nil || slices.Equal(e.Waived, got.Waived), strings.Join(e.Waived, ", "), strings.Join(got.Waived, ", "))
	return all
}

// describe returns the verdict with its reason.
func describe(r *policy.Result) string {
	text := string(r.Verdict)
	if r.Rule != "" {
		text += " (" + r.Rule + ")"
	}
	if message := strings.TrimPrefix(r.Message, r.Rule+": "); message != "" {
		text += ": " + message
	}
	return text
}

// show returns a line for each key. It marks the keys whose values the other map does not have.
func show(values, other map[string]string, absent string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		line := key + ": " + strconv.Quote(values[key])
		if have, ok := other[key]; !ok {
			line += " (" + absent + ")"
		} else if have != values[key] {
			line += " (differs)"
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return "none"
	}
	return strings.Join(lines, "\n            ")
}
