// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Policy is a BindPolicy of a file.
type Policy struct {
	*Document
	// Policy is as in the file, without defaults.
	Policy *v1alpha1.BindPolicy
	// Compiled is nil if there are problems.
	Compiled *policy.Compiled
	// Problems are the reasons why the API server or Prebind would not accept the policy.
	Problems []policy.Problem
	// Warnings are those of the compiler and about kinds.
	Warnings []v1alpha1.ExpressionWarning
}

// Ready returns whether the policy has no problems.
func (p *Policy) Ready() bool { return len(p.Problems) == 0 }

// ReasonInvalid is the reason of problems that the API server would find.
const ReasonInvalid = "Invalid"

// Check validates and compiles the BindPolicies of the documents, like the API server and Prebind. Schemas of custom resources are those of
// the CustomResourceDefinitions among the documents. Other documents are ignored. An error is a problem with a CustomResourceDefinition.
func Check(ctx context.Context, documents []*Document, o policy.Options) ([]*Policy, error) {
	schemas := Schemas{}
	var problems []error
	for _, d := range documents {
		if kind := d.GroupVersionKind(); kind.Group == "apiextensions.k8s.io" && kind.Kind == "CustomResourceDefinition" {
			problems = append(problems, schemas.Add(d))
		}
	}
	o.Schemas = schemas
	var all []*Policy
	seen := map[string]*Policy{}
	for _, d := range documents {
		switch kind := d.GroupVersionKind(); {
		case kind.Group != v1alpha1.Kind.Group || kind.Kind == "BindTask":
			continue
		case kind != v1alpha1.Kind:
			problems = append(problems, fmt.Errorf("%s: %s: must be %s, or BindPolicyTest in files *%s", d.At("kind"), kind, v1alpha1.Kind, TestSuffix))
			continue
		}
		p := check(ctx, d, o)
		p.checkKinds(schemas)
		if first := seen[d.GetName()]; first != nil && d.GetName() != "" {
			p.invalid("metadata.name", "another BindPolicy has the same name: "+first.At("metadata.name"))
		}
		if !p.Ready() {
			p.Compiled = nil
		}
		seen[d.GetName()] = p
		all = append(all, p)
	}
	return all, errors.Join(problems...)
}

// check validates the policy and compiles it. A problem of the compiler in a field that is not valid anyway is not reported.
func check(ctx context.Context, d *Document, o policy.Options) *Policy {
	p := &Policy{Document: d, Policy: &v1alpha1.BindPolicy{}}
	if d.GetName() == "" {
		p.invalid("metadata.name", "a string is required; quote it")
		return p // Rules of the schema need the name.
	}
	for _, err := range sharedValidator().validate(ctx, runtime.DeepCopyJSON(d.Object)) {
		path := strings.TrimPrefix(err.Field, "<nil>")
		if path == "" {
			path = "metadata.name" // The only rule of the object itself.
		}
		p.invalid(path, detail(err)+advice(path, err))
	}
	invalid := p.Problems
	for _, problem := range DecodeStrict(d.Object, p.Policy) {
		if problem.Message == unknownField || len(invalid) == 0 {
			p.Problems = append(p.Problems, problem) // The schema explains a wrong type better.
		}
	}
	var err error
	if p.Compiled, err = policy.Compile(p.Policy, o); err == nil {
		p.Warnings = p.Compiled.Warnings()
		return p
	}
	invalid = p.Problems
	for _, problem := range policy.Problems(err) {
		if !slices.ContainsFunc(invalid, func(i policy.Problem) bool { return strings.HasPrefix(problem.Field, i.Field) }) {
			p.Problems = append(p.Problems, problem)
		}
	}
	return p
}

// advice returns how to write a duration, or an expression that YAML does not read as a text, or reads as an empty one.
func advice(path string, err *field.Error) string {
	if strings.HasSuffix(path, ".timeout") {
		return "; write a duration, such as 30s or 4m"
	}
	if strings.HasSuffix(strings.ToLower(path), "expression") && (err.Type == field.ErrorTypeTypeInvalid || err.BadValue == "") {
		return "; " + quoteExpression
	}
	return ""
}

// invalid adds a problem that the API server would find.
func (p *Policy) invalid(field, message string) {
	p.Problems = append(p.Problems, policy.Problem{Reason: ReasonInvalid, Field: field, Message: message})
}

// detail returns the message of the API server without the field.
func detail(err *field.Error) string {
	return strings.TrimSpace(strings.TrimPrefix(err.ErrorBody(), "Invalid value: "))
}
