// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"slices"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Uncovered returns a line for each result that a policy of the directory can have, and that no case has: that the
// policy applies and that it does not, each rejection, and the wait and the timeout of each waitFor. Runtime errors of
// expressions do not count.
func (r *Result) Uncovered() []string {
	var missing []string
	for _, p := range r.Policies {
		has := func(what string, is func(policy.Result) bool) {
			if !slices.ContainsFunc(r.Cases, func(c CaseResult) bool {
				return slices.ContainsFunc(c.Results, func(got policy.Result) bool { return got.Policy == p.GetName() && is(got) })
			}) {
				missing = append(missing, fmt.Sprintf("BindPolicy %s: no case is %s", p.GetName(), what))
			}
		}
		with := func(v policy.Verdict, rule string) {
			what := string(v)
			if rule != "" {
				what += " because of " + rule
			}
			has(what, func(got policy.Result) bool { return got.Verdict == v && got.Rule == rule })
		}
		spec := &p.Policy.Spec
		with(policy.Allowed, "")
		if isSelective(spec) {
			has(string(policy.NotMatched), func(got policy.Result) bool { return got.Verdict == policy.NotMatched })
		}
		for i := range spec.Validations {
			with(policy.Rejected, fmt.Sprintf("spec.validations[%d]", i))
		}
		for _, w := range spec.WaitFor {
			rule := fmt.Sprintf("spec.waitFor[%s]", w.Name)
			with(policy.Waiting, rule)
			if w.OnTimeout == v1alpha1.OnTimeoutAllow {
				has("allowed after the timeout of "+rule, func(got policy.Result) bool { return slices.Contains(got.Waived, w.Name) })
			} else {
				with(policy.TimedOut, rule)
			}
		}
	}
	return missing
}

// isSelective returns whether a policy selects binds.
func isSelective(s *v1alpha1.BindPolicySpec) bool {
	m := &s.MatchConstraints
	return len(s.MatchConditions) > 0 || len(m.SchedulerNames) > 0 || m.NamespaceSelector != nil || m.PodSelector != nil || m.NodeSelector != nil
}
