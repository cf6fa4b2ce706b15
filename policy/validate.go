// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// The limits of the API, which also apply to policies from files.
const (
	maxExpression  = 8192
	maxName        = 63
	minTimeout     = time.Second
	maxTimeout     = 24 * time.Hour
	defaultTimeout = 2 * time.Minute
)

// setDefaults applies the defaults of the API.
func setDefaults(p *v1alpha1.BindPolicy) {
	if p.Spec.FailurePolicy == "" {
		p.Spec.FailurePolicy = v1alpha1.FailurePolicyFail
	}
	if p.Spec.Mode == "" {
		p.Spec.Mode = v1alpha1.ModeEnforce
	}
	for i := range p.Spec.WaitFor {
		w := &p.Spec.WaitFor[i]
		if w.Timeout.Duration == 0 {
			w.Timeout.Duration = defaultTimeout
		}
		if w.OnTimeout == "" {
			w.OnTimeout = v1alpha1.OnTimeoutRefuse
		}
	}
}

// identifier is the form of names that expressions use.
var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// validator collects the problems of a policy that do not depend on CEL. The schema of the API finds them,
// too, but a policy can come from a file.
type validator struct{ problems []error }

func (v *validator) add(field, format string, args ...any) {
	v.problems = append(v.problems, &Problem{
		Reason: v1alpha1.ReasonCompileError, Field: field, Message: line(fmt.Sprintf(format, args...)),
	})
}

func (v *validator) expression(field, source string, required bool) {
	switch {
	case source == "" && required:
		v.add(field, "required")
	case len(source) > maxExpression:
		v.add(field, "must have at most %d bytes, has %d", maxExpression, len(source))
	}
}

// names checks that names are unique and valid.
func (v *validator) names(list string, identifiers bool, n int, name func(i int) string) {
	seen := map[string]bool{}
	for i := range n {
		at, text := fmt.Sprintf("%s[%d].name", list, i), name(i)
		switch {
		case text == "":
			v.add(at, "required")
		case len(text) > maxName:
			v.add(at, "must have at most %d bytes", maxName)
		case identifiers && !identifier.MatchString(text):
			v.add(at, "must be an identifier of letters, digits and underscores, got %q", text)
		case seen[text]:
			v.add(at, "duplicate name %q", text)
		}
		seen[text] = true
	}
}

func validate(p *v1alpha1.BindPolicy) []error {
	v := &validator{}
	if errs := validation.IsDNS1123Label(p.Name); len(errs) > 0 {
		v.add("metadata.name", "%s", strings.Join(errs, "; "))
	}
	s := &p.Spec
	if len(s.Validations) == 0 && len(s.WaitFor) == 0 && s.Mutations == nil {
		v.add("spec", "at least one of validations, waitFor and mutations is required")
	}
	if s.FailurePolicy != v1alpha1.FailurePolicyFail && s.FailurePolicy != v1alpha1.FailurePolicyIgnore {
		v.add("spec.failurePolicy", "must be Fail or Ignore, got %q", s.FailurePolicy)
	}
	if s.Mode != v1alpha1.ModeEnforce && s.Mode != v1alpha1.ModeAudit {
		v.add("spec.mode", "must be Enforce or Audit, got %q", s.Mode)
	}
	v.names("spec.matchConditions", false, len(s.MatchConditions), func(i int) string { return s.MatchConditions[i].Name })
	for i, m := range s.MatchConditions {
		v.expression(fmt.Sprintf("spec.matchConditions[%d].expression", i), m.Expression, true)
	}
	v.names("spec.resources", true, len(s.Resources), func(i int) string { return s.Resources[i].Name })
	for i := range s.Resources {
		v.resource(fmt.Sprintf("spec.resources[%d]", i), &s.Resources[i])
	}
	v.names("spec.variables", true, len(s.Variables), func(i int) string { return s.Variables[i].Name })
	for i, m := range s.Variables {
		v.expression(fmt.Sprintf("spec.variables[%d].expression", i), m.Expression, true)
	}
	for i, r := range s.Validations {
		at := fmt.Sprintf("spec.validations[%d]", i)
		v.expression(at+".expression", r.Expression, true)
		v.expression(at+".messageExpression", r.MessageExpression, false)
	}
	v.names("spec.waitFor", false, len(s.WaitFor), func(i int) string { return s.WaitFor[i].Name })
	for i := range s.WaitFor {
		v.wait(fmt.Sprintf("spec.waitFor[%d]", i), &s.WaitFor[i])
	}
	if m := s.Mutations; m != nil {
		if len(m.Annotations) == 0 && len(m.Labels) == 0 {
			v.add("spec.mutations", "annotations or labels are required")
		}
		for i, a := range m.Annotations {
			v.expression(fmt.Sprintf("spec.mutations.annotations[%d].valueExpression", i), a.ValueExpression, true)
		}
		for i, l := range m.Labels {
			v.expression(fmt.Sprintf("spec.mutations.labels[%d].valueExpression", i), l.ValueExpression, true)
		}
	}
	return v.problems
}

func (v *validator) resource(at string, r *v1alpha1.Resource) {
	if r.APIVersion == "" {
		v.add(at+".apiVersion", "required")
	}
	if r.Kind == "" {
		v.add(at+".kind", "required")
	}
	v.expression(at+".nameExpression", r.NameExpression, false)
	v.expression(at+".namespaceExpression", r.NamespaceExpression, false)
	switch {
	case r.NameExpression == "" && r.LabelSelector == nil && !r.OnNode:
		v.add(at, "nameExpression, labelSelector or onNode is required")
	case r.NameExpression != "" && (r.LabelSelector != nil || r.OnNode):
		v.add(at+".nameExpression", "cannot be combined with labelSelector or onNode")
	}
	if r.NamespaceExpression != "" && (r.NameExpression == "" || r.Namespace != "") {
		v.add(at+".namespaceExpression", "requires nameExpression and cannot be combined with namespace")
	}
}

func (v *validator) wait(at string, w *v1alpha1.Wait) {
	v.expression(at+".expression", w.Expression, true)
	v.expression(at+".messageExpression", w.MessageExpression, false)
	if d := w.Timeout.Duration; d < minTimeout || d > maxTimeout {
		v.add(at+".timeout", "must be between %s and %s, got %s", minTimeout, maxTimeout, d)
	}
	if w.OnTimeout != v1alpha1.OnTimeoutRefuse && w.OnTimeout != v1alpha1.OnTimeoutAllow {
		v.add(at+".onTimeout", "must be Refuse or Allow, got %q", w.OnTimeout)
	}
}
