// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/internal/text"
)

// Evaluate evaluates the policy for a bind. An error means that the context ended. Costs limit an evaluation, not time, so that a
// busy processor does not change the result.
//
// The order is: matchConstraints, matchConditions, validations, waitFor, tasks, mutations. The first validation that is
// false ends the evaluation, even if another one fails. All waits are evaluated; the first that is false gives the message. The
// message counts the others. A wait that fails after another one was false counts as false.
//
// A match condition that is false makes the policy not apply, even if another one fails.
func (c *Compiled) Evaluate(ctx context.Context, s *Subject, o Objects) (Result, error) {
	result := Result{Policy: c.name, UID: c.uid, Audit: c.audit, Needs: c.needs, Verdict: NotMatched, Rule: c.match.differs(s)}
	if result.Rule != "" {
		return result, nil // Most policies end here, so this comes before the state of the evaluation.
	}
	result.Rule = "spec.matchConstraints.namespaceSelector"
	e := &evaluation{ctx: ctx, policy: c, subject: s, objects: o, result: result}
	err := e.decide()
	switch {
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case err != nil:
		e.fail(err)
	}
	e.result.Cost = e.cost
	return e.result, nil
}

// decide sets the result. A panic is an error of the policy.
func (e *evaluation) decide() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error: %v", r)
		}
	}()
	if matched, err := e.matches(); !matched || err != nil {
		return err
	}
	e.result.Verdict, e.result.Rule = Allowed, ""
	for _, step := range []func() error{e.validate, e.wait, e.ask, e.mutate} {
		if err := step(); err != nil || e.result.Verdict != Allowed {
			return err
		}
	}
	return nil
}

// at returns the error of a rule, which becomes Result.Rule if the policy fails.
func (e *evaluation) at(rule string, err error) error {
	e.rule = rule
	return fmt.Errorf("%s: %w", rule, err)
}

// pendingAgain is when a policy that cannot be evaluated yet is evaluated again if no object changes.
const pendingAgain = time.Second

// fail sets the result of a policy that cannot be evaluated. An expression can hide why it failed, so any read that failed counts.
func (e *evaluation) fail(err error) {
	message := err.Error()
	e.result.Until = time.Time{}
	switch {
	case e.policy.ignore:
		e.result.Verdict, e.result.Needs = Ignored, 0
	case e.unread || errors.Is(err, ErrPreparing):
		e.result.Verdict, e.result.Until = Waiting, e.subject.Now.Add(pendingAgain)
		message = "waiting for the policy to become ready: " + message
	default:
		e.result.Verdict = Failed
	}
	e.result.Err = err
	e.result.Message = line(message)
	e.result.Rule = cmp.Or(e.rule, "spec")
	e.result.Waived, e.result.Tasks, e.result.Annotations, e.result.Labels = nil, nil, nil, nil
}

// matches evaluates the selector of namespaces and the match conditions.
func (e *evaluation) matches() (bool, error) {
	if selector := e.policy.match.namespaces; selector != nil {
		if ns, err := e.namespace(); err != nil || !selector.Matches(labels.Set(ns.Labels)) {
			return false, err
		}
	}
	if e.policy.broken != nil {
		return false, e.policy.broken
	}
	no, err := e.firstFalse(e.policy.conditions)
	if no != nil {
		e.result.Rule = no.path
	}
	return no == nil && err == nil, err
}

// validate evaluates the validations. Each decides for itself, as in a ValidatingAdmissionPolicy.
func (e *evaluation) validate() error {
	v, err := e.firstFalse(e.policy.validations)
	if v != nil {
		e.result.Verdict, e.result.Rule, e.result.Message = Rejected, v.path, e.message(v, "failed expression: "+v.source)
	}
	return err
}

// firstFalse returns the first rule that is false. It returns the first error if none is false.
func (e *evaluation) firstFalse(rules []rule) (*rule, error) {
	var failed error
	for i := range rules {
		r := &rules[i]
		ok, err := evalAs[types.Bool](e, r.expression)
		switch {
		case err != nil && failed == nil:
			failed = e.at(r.path, err)
		case err == nil && !bool(ok):
			return r, nil
		}
	}
	return nil, failed
}

// wait evaluates all waits.
func (e *evaluation) wait() error {
	var first, over *rule
	others := 0
	for i := range e.policy.waits {
		w := &e.policy.waits[i]
		ok, err := evalAs[types.Bool](e, w.expression)
		switch {
		case err != nil && first == nil && over == nil:
			return e.at(w.path, err)
		case bool(ok):
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
		message := e.message(over, "the condition "+over.name+" is not met")
		e.result.Verdict, e.result.Rule, e.result.Until = TimedOut, over.path, time.Time{}
		e.result.Message = suffixed(message, fmt.Sprintf(" (timed out after %s)", over.timeout))
	case first != nil:
		message := e.message(first, "waiting for "+first.name)
		e.result.Verdict, e.result.Rule, e.result.Message = Waiting, first.path, message
		if others > 0 {
			e.result.Message = suffixed(message, fmt.Sprintf(" (and %d more)", others))
		}
	}
	return nil
}

// suffixed clips the message so that the suffix fits.
func suffixed(message, suffix string) string {
	return text.Clip(message, MaxMessage-len(suffix)) + suffix
}

// line returns the message as one line of at most MaxMessage bytes.
func line(message string) string { return strings.TrimSpace(text.Clip(message, MaxMessage)) }

// message returns the message of a rule that is false.
func (e *evaluation) message(r *rule, fallback string) string {
	if r.message != nil {
		if s, err := evalAs[types.String](e, r.message); err == nil {
			if own := strings.TrimSpace(string(s)); own != "" && !strings.ContainsAny(own, "\n\r") {
				return line(own)
			}
		}
	}
	return cmp.Or(line(r.text), line(fallback))
}

// ask evaluates the parameters of the tasks.
func (e *evaluation) ask() error {
	for i := range e.policy.tasks {
		t := &e.policy.tasks[i]
		asked := t.Task
		var err error
		if asked.Parameters, err = e.texts(t.parameters, nil); err != nil {
			return err
		}
		size := 0
		for key, value := range asked.Parameters {
			size += len(key) + len(value)
		}
		if size > MaxParameters {
			return e.at(t.path, limit("the parameters have %d bytes, more than %d", size, MaxParameters))
		}
		e.result.Tasks = append(e.result.Tasks, asked)
	}
	return nil
}

// mutate evaluates the annotations and labels.
func (e *evaluation) mutate() (err error) {
	if e.result.Annotations, err = e.texts(e.policy.annotations, nil); err != nil {
		return err
	}
	if err := apivalidation.ValidateAnnotationsSize(e.result.Annotations); err != nil {
		return e.at("spec.mutations.annotations", err)
	}
	e.result.Labels, err = e.texts(e.policy.labels, validation.IsValidLabelValue)
	return err
}

// texts evaluates mutations. validate returns the reasons why a value is not valid.
func (e *evaluation) texts(mutations []mutation, validate func(string) []string) (map[string]string, error) {
	var values map[string]string
	for i := range mutations {
		m := &mutations[i]
		value, ok, err := e.text(m.expression)
		if ok && validate != nil {
			if errs := validate(value); len(errs) > 0 {
				err = fmt.Errorf("invalid label value: %s", strings.Join(errs, "; "))
			}
		}
		if err != nil {
			return nil, e.at(m.path, err)
		}
		if ok {
			if values == nil {
				values = make(map[string]string, len(mutations))
			}
			values[m.key] = value
		}
	}
	return values, nil
}

// text evaluates an expression that returns a string, null or an optional string.
func (e *evaluation) text(x *expression) (string, bool, error) {
	v, err := e.eval(x)
	if err != nil {
		return "", false, err
	}
	if o, ok := v.(*types.Optional); ok {
		if v = types.NullValue; o.HasValue() {
			v = o.GetValue()
		}
	}
	switch v := v.(type) {
	case types.String:
		return strings.ToValidUTF8(string(v), "\uFFFD"), true, nil
	case types.Null:
		return "", false, nil
	}
	return "", false, typeError("string or null", v)
}

// evalAs evaluates an expression that returns values of the type.
func evalAs[T ref.Val](e *evaluation, x *expression) (typed T, err error) {
	v, err := e.eval(x)
	if err != nil {
		return typed, err
	}
	typed, ok := v.(T)
	if !ok {
		return typed, typeError(typed.Type().TypeName(), v)
	}
	return typed, nil
}

func typeError(want string, got ref.Val) error {
	return fmt.Errorf("must return %s, but returned %s", want, got.Type().TypeName())
}
