// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/internal/policy"
)

// WriteText writes the failures of a directory, and a summary in one line. With verbose, it writes the results of all cases.
func (r *Result) WriteText(out io.Writer, verbose bool) error {
	failed := 0
	for _, c := range r.Cases {
		texts := slices.Clone(c.Failures)
		if verbose {
			for i := range c.Results {
				texts = append(texts, details(&c.Results[i]))
			}
		}
		result := "PASS"
		if len(c.Failures) > 0 {
			failed++
			result = "FAIL"
		}
		if len(texts) > 0 {
			fmt.Fprintf(out, "--- %s: %s (%s)\n%s\n", result, c.Name, c.File, indent(strings.Join(texts, "\n")))
		}
	}
	if r.Err != nil {
		fmt.Fprintln(out, r.Err)
	}
	result, after := "FAIL", ""
	switch {
	case r.Err != nil:
		after = ", invalid"
	case failed > 0:
		after = fmt.Sprintf(", %d failed", failed)
	default:
		result = "ok"
	}
	_, err := fmt.Fprintf(out, "%-4s  %s  %s%s\n", result, r.Dir, count(len(r.Cases)), after)
	return err
}

// details returns the result of a policy for the bind of a case, as YAML that can be an item of expect.
func details(r *policy.Result) string {
	summary := fmt.Sprintf("# BindPolicy %s: %s, cost %d", r.Policy, r.Verdict, r.Cost)
	if r.Verdict == policy.NotMatched {
		summary += ", because of " + r.Rule
	}
	if r.Audit {
		summary += ", mode Audit"
	}
	e := Expectation{Policy: r.Policy, Verdict: r.Verdict, Annotations: r.Annotations, Labels: r.Labels, Tasks: tasksOf(r), Waived: r.Waived}
	if r.Verdict != policy.Allowed && r.Verdict != policy.NotMatched {
		e.Message, e.Rule = &r.Message, &r.Rule
	}
	text, err := yaml.Marshal([]Expectation{e})
	if err != nil {
		return err.Error()
	}
	return summary + "\n" + strings.TrimSpace(string(text))
}

func count(cases int) string {
	if cases == 1 {
		return "1 case"
	}
	return fmt.Sprintf("%d cases", cases)
}

func indent(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }
