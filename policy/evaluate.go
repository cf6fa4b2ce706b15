// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Evaluate evaluates the policy for a bind. An error means that the context ended. If the expressions alone exceed Options.TimeLimit, that is a
// runtime error of the policy.
//
// The order is: matchConstraints, matchConditions, validations, waitFor, mutations. The first validation that is
// false ends the evaluation, even if another one fails. All waits are evaluated; the first that is false gives the message. The
// message counts the others. A wait that fails after another one was false counts as false.
//
// A match condition that is false makes the policy not apply, even if another one fails.
func (c *Compiled) Evaluate(ctx context.Context, s *Subject, o Objects) (Result, error) {
	notMatched := Result{Policy: c.name, Audit: c.audit, Verdict: NotMatched}
	if s.Pod == nil || s.Node == nil {
		return Result{}, errNoSubject
	}
	if !c.match.matches(s) {
		return notMatched, nil
	}
	// Most policies end here, so this comes before the state of the evaluation, which is large.
	ns, err := c.namespace(ctx, o)
	if err == nil && !c.match.matchesNamespace(ns) {
		return notMatched, nil
	}
	e := newEvaluation(ctx, c, s, o)
	defer e.watch.end()
	e.ns, e.read = ns, c.match.namespaces != nil
	matched := false
	switch {
	case err != nil:
	case c.broken != nil:
		err = c.broken
	default:
		matched, err = e.matches()
	}
	if err == nil && matched {
		e.result.Verdict = Allowed
		err = e.protect((*evaluation).all)
	}
	e.result.Cost = e.cost
	switch {
	case e.err != nil:
		return Result{}, e.err
	case err != nil:
		e.fail(err)
	}
	return e.result, nil
}

// namespace reads the Namespace if the policy has a selector of namespaces.
func (c *Compiled) namespace(ctx context.Context, o Objects) (ns *corev1.Namespace, err error) {
	if c.match.namespaces == nil {
		return nil, nil
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error: %v", r)
		}
	}()
	ns, err = o.Namespace(ctx)
	return ns, readError(err)
}

// readError returns the error of Objects as a LimitError or a PendingError.
func readError(err error) error {
	if err == nil || errors.As(err, new(*LimitError)) {
		return err
	}
	return &PendingError{Err: err}
}

// errNoSubject is the reason for an incomplete Subject.
var errNoSubject = errors.New("the pod and the node are required")

// ruleError is the error of an expression.
type ruleError struct {
	// rule is Result.Rule.
	rule string
	err  error
}

// Error implements error.
func (r *ruleError) Error() string { return r.rule + ": " + r.err.Error() }

// Unwrap returns the cause.
func (r *ruleError) Unwrap() error { return r.err }

// protect calls the steps. A panic is an error of the policy.
func (e *evaluation) protect(steps func(*evaluation) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error: %v", r)
		}
	}()
	return steps(e)
}

// pendingAgain is when a policy that cannot be evaluated yet is evaluated again if no object changes.
const pendingAgain = time.Second

// fail sets the result of a policy that cannot be evaluated. An expression can hide why it failed, so any read that failed counts.
func (e *evaluation) fail(err error) {
	pending := e.unread != nil || errors.As(err, new(*PendingError))
	e.result.Until = time.Time{}
	switch {
	case e.policy.ignore:
		e.result.Verdict = Ignored
	case pending:
		e.result.Verdict, e.result.Until = Waiting, e.subject.Now.Add(pendingAgain)
	default:
		e.result.Verdict = Failed
	}
	e.result.Err = err
	e.result.Message = line(err.Error())
	if e.result.Verdict == Waiting {
		e.result.Message = line("waiting for the policy to become ready: " + err.Error())
	}
	e.result.Rule = "spec"
	if r := (*ruleError)(nil); errors.As(err, &r) {
		e.result.Rule = r.rule
	}
	e.result.Waived, e.result.Annotations, e.result.Labels = nil, nil, nil
}

// matches evaluates the match conditions.
func (e *evaluation) matches() (bool, error) {
	matched := true
	err := e.protect(func(e *evaluation) error {
		var failed error
		for _, m := range e.policy.conditions {
			ok, err := e.bool(m.expression)
			switch {
			case e.err != nil:
				return e.err
			case err != nil && failed == nil:
				failed = &ruleError{rule: "spec.matchConditions[" + m.name + "]", err: err}
			case err == nil && !ok:
				matched = false
				return nil
			}
		}
		return failed
	})
	return matched && err == nil, err
}

// all evaluates everything after the match.
func (e *evaluation) all() error {
	if err := e.validate(); err != nil || e.result.Verdict != Allowed {
		return err
	}
	if err := e.wait(); err != nil || e.result.Verdict != Allowed {
		return err
	}
	return e.mutate()
}

// validate evaluates the validations. Each decides for itself, as in a ValidatingAdmissionPolicy. It returns the first error if none is false.
func (e *evaluation) validate() error {
	var failed error
	for i := range e.policy.validations {
		v := &e.policy.validations[i]
		ok, err := e.bool(v.expression)
		switch {
		case e.err != nil:
			return e.err
		case err != nil && failed == nil:
			failed = &ruleError{rule: v.path, err: err}
		case err == nil && !ok:
			message := e.message(v, "failed expression: "+v.source)
			e.result.Verdict, e.result.Rule, e.result.Message = Rejected, v.path, message
			return e.err
		}
	}
	return failed
}

// wait evaluates all waits.
func (e *evaluation) wait() error {
	var first, over *wait
	others := 0
	for i := range e.policy.waits {
		w := &e.policy.waits[i]
		ok, err := e.bool(w.expression)
		switch {
		case e.err != nil:
			return e.err
		case err != nil && first == nil && over == nil:
			return &ruleError{rule: w.path, err: err}
		case ok && err == nil:
			continue
		}
		deadline := e.subject.Since.Add(w.timeout)
		switch {
		case e.subject.Now.Before(deadline):
			if e.result.Until.IsZero() || deadline.Before(e.result.Until) {
				e.result.Until = deadline
			}
			if first == nil {
				first = w
			} else {
				others++
			}
		case w.allow:
			e.result.Waived = append(e.result.Waived, w.name)
		case over == nil:
			over = w
		}
	}
	switch {
	case over != nil:
		message := e.message(&over.rule, "the condition "+over.name+" is not met")
		e.result.Verdict, e.result.Rule, e.result.Until = TimedOut, over.path, time.Time{}
		e.result.Message = suffixed(message, fmt.Sprintf(" (timed out after %s)", over.timeout))
	case first != nil:
		message := e.message(&first.rule, "waiting for "+first.name)
		e.result.Verdict, e.result.Rule, e.result.Message = Waiting, first.path, message
		if others > 0 {
			e.result.Message = suffixed(message, fmt.Sprintf(" (and %d more)", others))
		}
	}
	return e.err
}

// suffixed clips the message so that the suffix fits.
func suffixed(message, suffix string) string {
	return clip(message, MaxMessage-len(suffix)) + suffix
}

// message returns the message of a rule that is false.
func (e *evaluation) message(r *rule, fallback string) string {
	if r.message != nil {
		v, err := e.eval(r.message)
		if s, ok := v.(types.String); ok && err == nil {
			if text := strings.TrimSpace(string(s)); text != "" && !strings.ContainsAny(text, "\n\r") {
				return line(text)
			}
		}
	}
	if text := line(r.text); text != "" {
		return text
	}
	return line(fallback)
}

// mutate evaluates the annotations and labels.
func (e *evaluation) mutate() error {
	var err error
	if e.result.Annotations, err = e.values("spec.mutations.annotations", e.policy.annotations); err != nil {
		return err
	}
	if err := apivalidation.ValidateAnnotationsSize(e.result.Annotations); err != nil {
		return &ruleError{rule: "spec.mutations.annotations", err: err}
	}
	if e.result.Labels, err = e.values("spec.mutations.labels", e.policy.labels); err != nil {
		return err
	}
	for i := range e.policy.labels {
		m := &e.policy.labels[i]
		if errs := validation.IsValidLabelValue(e.result.Labels[m.key]); len(errs) > 0 {
			return &ruleError{rule: pathOf("spec.mutations.labels", m), err: fmt.Errorf("invalid label value: %s", strings.Join(errs, "; "))}
		}
	}
	return nil
}

func pathOf(field string, m *mutation) string { return field + "[" + m.key + "]" }

func (e *evaluation) values(field string, mutations []mutation) (map[string]string, error) {
	var values map[string]string
	for i := range mutations {
		m := &mutations[i]
		value, ok, err := e.value(m.expression)
		if err != nil {
			return nil, &ruleError{rule: pathOf(field, m), err: err}
		}
		if !ok {
			continue
		}
		if values == nil {
			values = make(map[string]string, len(mutations))
		}
		values[m.key] = value
	}
	return values, nil
}

// value evaluates an expression that returns a string, null or an optional string.
func (e *evaluation) value(x *expression) (string, bool, error) {
	v, err := e.eval(x)
	if err != nil {
		return "", false, err
	}
	if o, ok := v.(*types.Optional); ok {
		if !o.HasValue() {
			return "", false, nil
		}
		v = o.GetValue()
	}
	switch v := v.(type) {
	case types.String:
		return strings.ToValidUTF8(string(v), "\uFFFD"), true, nil
	case types.Null:
		return "", false, nil
	}
	return "", false, typeError("string or null", v)
}

// bool evaluates an expression that returns a bool.
func (e *evaluation) bool(x *expression) (bool, error) {
	v, err := e.eval(x)
	if err != nil {
		return false, err
	}
	if b, ok := v.(types.Bool); ok {
		return bool(b), nil
	}
	return false, typeError("bool", v)
}

// text evaluates an expression that returns a string.
func (e *evaluation) text(x *expression) (string, error) {
	v, err := e.eval(x)
	if err != nil {
		return "", err
	}
	if s, ok := v.(types.String); ok {
		return string(s), nil
	}
	return "", typeError("string", v)
}

func typeError(want string, got ref.Val) error {
	return fmt.Errorf("must return %s, but returned %s", want, got.Type().TypeName())
}
