// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
)

// judge returns the decision that follows from the results: a rejection by the first policy that rejects the bind,
// otherwise a wait for the first policy that delays it. Policies in mode Audit do not count.
func judge(results []evaluated) (*framework.Error, framework.Waiting) {
	var rejecting, waiting []policy.Result
	for _, e := range results {
		switch r := e.result; {
		case r.Audit:
		case r.Verdict.Rejects():
			rejecting = append(rejecting, r)
		case r.Verdict == policy.Waiting:
			waiting = append(waiting, r)
		}
	}
	switch {
	case len(rejecting) > 0:
		return refusalOf(rejecting), framework.Waiting{}
	case len(waiting) > 0:
		return nil, waitOf(waiting)
	default:
		return nil, framework.Waiting{}
	}
}

// refusalOf returns the rejection by the first policy.
func refusalOf(rejecting []policy.Result) *framework.Error {
	first := rejecting[0]
	return framework.Refuse(aboutPolicy(first.Policy), "%s", first.Message+others(rejecting)).Because(first.Err).Advise("%s", advice(first))
}

// advice returns the remedy of a rejection.
func advice(r policy.Result) string {
	if r.Verdict == policy.Failed {
		return "correct the policy, or set failurePolicy: Ignore"
	}
	return "choose another node, or see " + r.Rule + " of the policy"
}

// waitOf returns the wait for the first policy. It ends at the earliest time at which a verdict changes.
func waitOf(waiting []policy.Result) framework.Waiting {
	first := waiting[0]
	w := framework.Waiting{Object: aboutPolicy(first.Policy), For: awaited(first) + others(waiting), Until: first.Until}
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

// explain records the results of the policies that apply to the bind, with warnings for effects that the decision does not show.
func explain(bc *framework.BindContext, results []evaluated) {
	for _, e := range results {
		r := e.result
		verdict := string(r.Verdict)
		if r.Audit {
			verdict += " (audit)"
		}
		bc.Found(framework.Finding{Name: r.Policy, Verdict: verdict, Message: r.Message})
		if text := auditText(r); text != "" {
			bc.Warn("%s", text)
		}
		if r.Verdict == policy.Ignored {
			bc.Warn("%s: %s: skipped because an expression failed: %s", Name, aboutPolicy(r.Policy), r.Message)
		}
		for _, wait := range r.Waived {
			bc.Warn("%s: %s: the wait %s timed out, and onTimeout allows the bind", Name, aboutPolicy(r.Policy), wait)
		}
	}
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
	default:
		return ""
	}
}

// mutate sets the annotations and labels of the policies. The last policy that sets a key wins.
func mutate(bc *framework.BindContext, results []evaluated) {
	var annotations, labels setKeys
	for _, e := range results {
		if r := e.result; r.Verdict == policy.Allowed && !r.Audit {
			annotations.add(bc, r.Policy, "annotation", r.Annotations, bc.SetAnnotation)
			labels.add(bc, r.Policy, "label", r.Labels, bc.SetLabel)
		}
	}
}

// setKeys contains the policy that set each key.
type setKeys map[string]string

// add sets the keys of a policy. It records a warning for each key that an earlier policy has set.
func (s *setKeys) add(bc *framework.BindContext, policy, what string, values map[string]string, set func(plugin, key, value string)) {
	if len(values) > 0 && *s == nil {
		*s = setKeys{}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if earlier, ok := (*s)[key]; ok {
			bc.Warn("%s: %s: replaces the %s %s of BindPolicy %s", Name, aboutPolicy(policy), what, key, earlier)
		}
		(*s)[key] = policy
		set(Name, key, values[key])
	}
}
