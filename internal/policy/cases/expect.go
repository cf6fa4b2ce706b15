// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

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
	compare := func(field string, expected bool, want, have any) {
		if expected && !equality.Semantic.DeepEqual(want, have) {
			report(field, show(want), show(have))
		}
	}
	compare("message", e.Message != nil, ptr.Deref(e.Message, ""), got.Message)
	compare("messageContains", !strings.Contains(got.Message, e.MessageContains), e.MessageContains, got.Message)
	compare("rule", e.Rule != nil, ptr.Deref(e.Rule, ""), got.Rule)
	compare("annotations", e.Annotations != nil, e.Annotations, got.Annotations)
	compare("labels", e.Labels != nil, e.Labels, got.Labels)
	compare("tasks", e.Tasks != nil, e.Tasks, tasksOf(got))
	compare("waived", e.Waived != nil, e.Waived, got.Waived)
	return all
}

// tasksOf returns the parameters of all tasks by their names.
func tasksOf(r *policy.Result) map[string]map[string]string {
	tasks := map[string]map[string]string{}
	for _, t := range r.Tasks {
		tasks[t.Name] = t.Parameters
	}
	return tasks
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

// show returns a value as YAML.
func show(value any) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n            ")
}
