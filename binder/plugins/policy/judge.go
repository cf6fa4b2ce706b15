// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/policy"
)

// judge returns the decision that follows from the results: a rejection by the first policy that rejects the bind,
// otherwise a wait for the first policy that delays it, and otherwise the annotations and labels of all policies.
// Policies in mode Audit do not count.
func judge(all []policy.Result) (framework.Verdict, error) {
	v := explained(all)
	var rejecting, waiting []policy.Result
	for _, r := range all {
		switch {
		case r.Audit:
		case r.Verdict.Rejects():
			rejecting = append(rejecting, r)
		case r.Verdict == policy.Waiting:
			waiting = append(waiting, r)
		}
	}
	switch {
	case len(rejecting) > 0:
		return v, refusalOf(rejecting)
	case len(waiting) > 0:
		v.Wait = waitOf(waiting)
	default:
		mutate(&v, all)
	}
	return v, nil
}

// refusalOf returns the rejection by the first policy.
func refusalOf(rejecting []policy.Result) *framework.Error {
	first := rejecting[0]
	return framework.Refuse(aboutPolicy(first.Policy), "%s", first.Message+others(rejecting)).Because(first.Err).Advise("%s", advice(first))
}

// advice returns the remedy of a rejection.
func advice(r policy.Result) string {
	if r.Verdict == policy.Failed {
		return "correct the policy, or set its mode to Audit"
	}
	return "choose another node, or see " + r.Rule + " of the policy"
}

// waitOf returns the wait for the first policy. It ends at the earliest time at which a verdict changes.
func waitOf(waiting []policy.Result) framework.Wait {
	first := waiting[0]
	w := framework.Wait{Object: aboutPolicy(first.Policy), For: awaited(first) + others(waiting), Until: first.Until}
	for _, r := range waiting[1:] {
		if w.Until.IsZero() || !r.Until.IsZero() && r.Until.Before(w.Until) {
			w.Until = r.Until
		}
	}
	return w
}

// awaited completes the sentence "waiting for …", such as "driver: CSI driver not registered on node-1".
func awaited(r policy.Result) string {
	if text, ok := strings.CutPrefix(r.Message, "waiting for "); ok {
		return text
	}
	name := strings.TrimSuffix(strings.TrimPrefix(r.Rule, "spec.waitFor["), "]")
	return name + ": " + r.Message
}

// others counts the policies after the first one.
func others(results []policy.Result) string {
	switch more := len(results) - 1; more {
	case 0:
		return ""
	case 1:
		return " (and 1 more policy)"
	default:
		return fmt.Sprintf(" (and %d more policies)", more)
	}
}

// explained returns a verdict with the results of the policies that apply to the bind, and with warnings for effects that the
// decision does not show.
func explained(all []policy.Result) framework.Verdict {
	var v framework.Verdict
	for _, r := range all {
		verdict := string(r.Verdict)
		if r.Audit {
			verdict += " (audit)"
		}
		v.Findings = append(v.Findings, framework.Finding{Name: r.Policy, Verdict: verdict, Message: r.Message})
		if text := auditText(r); text != "" {
			v.Warnings = append(v.Warnings, text)
		}
		if r.Verdict == policy.Ignored {
			v.Warnings = append(v.Warnings, fmt.Sprintf("%s: %s: skipped because it cannot be evaluated: %s", Name, aboutPolicy(r.Policy), r.Message))
		}
		if r.Verdict != policy.Allowed {
			continue
		}
		for _, wait := range r.Waived {
			v.Warnings = append(v.Warnings, fmt.Sprintf("%s: %s: the wait %s timed out, and onTimeout allows the bind", Name, aboutPolicy(r.Policy), wait))
		}
	}
	return v
}

// auditText returns what a policy in mode Audit would do, or an empty string.
func auditText(r policy.Result) string {
	switch {
	case !r.Audit:
		return ""
	case r.Verdict.Rejects():
		return fmt.Sprintf("%s: %s: audit: the bind would be rejected: %s", Name, aboutPolicy(r.Policy), r.Message)
	case r.Verdict == policy.Waiting:
		return fmt.Sprintf("%s: %s: audit: the bind would wait for %s", Name, aboutPolicy(r.Policy), awaited(r))
	case len(r.Tasks) > 0:
		return fmt.Sprintf("%s: %s: audit: the bind would wait for %d tasks, the first one %s of %s", Name, aboutPolicy(r.Policy), len(r.Tasks), r.Tasks[0].Name, r.Tasks[0].Handler)
	default:
		return ""
	}
}

// mutate sets the annotations and labels of the policies. The last policy that sets a key wins, with a warning.
func mutate(v *framework.Verdict, all []policy.Result) {
	by := map[string]string{}
	merge := func(what string, into *map[string]string, r policy.Result, values map[string]string) {
		if len(values) > 0 && *into == nil {
			*into = map[string]string{}
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if earlier, ok := by[what+key]; ok {
				v.Warnings = append(v.Warnings, fmt.Sprintf("%s: %s: replaces the %s %s of BindPolicy %s", Name, aboutPolicy(r.Policy), what, key, earlier))
			}
			(*into)[key], by[what+key] = values[key], r.Policy
		}
	}
	for _, r := range all {
		if !r.Audit {
			merge("annotation", &v.Annotations, r, r.Annotations)
			merge("label", &v.Labels, r, r.Labels)
		}
	}
}
