// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutation runs the chain of mutators.
package mutation

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Chain runs mutators in order and adds the prefixes of their keys. It is safe for concurrent
// use.
type Chain struct {
	links []link
}

type link struct {
	mutator  mutators.Mutator
	name     string
	prefix   string
	required bool
}

// NewChain returns the chain of the mutators in this order. Their names must be unique and valid in annotation keys. Without the complete
// output of the required mutators, Prebind rejects a bind.
func NewChain(all []mutators.Mutator, required []string) *Chain {
	c := &Chain{}
	for _, m := range all {
		name := m.Name()
		c.links = append(c.links, link{mutator: m, name: name, prefix: name + "." + v1alpha1.Domain + "/", required: slices.Contains(required, name)})
	}
	return c
}

// Len returns the number of mutators.
func (c *Chain) Len() int { return len(c.links) }

// Result is the output of the chain.
type Result struct {
	// Annotations and Labels by complete key. The caller owns the maps.
	Annotations, Labels map[string]string
	// Conflicts are the keys for which the Binding or the pod had a different value, in order.
	Conflicts []Conflict
	// Failures are the mutators that failed, in order.
	Failures []Failure
	// Refused is the first error of a required mutator, or nil.
	Refused *Refusal
}

// Values of Conflict.Source.
const (
	sourceBinding = "Binding"
	sourcePod     = "pod"
)

// Conflict is a key for which the value of the Binding or the pod differs from that of the mutator.
type Conflict struct {
	Mutator string
	// Field is "annotation" or "label".
	Field string
	Key   string
	// Source is the object with the other value: "Binding" or "pod".
	Source string
	// Kept means that Prebind kept the other value. Otherwise, the value of the mutator replaced it.
	Kept bool
}

// String returns a warning for the client.
func (c Conflict) String() string {
	done := "replaced"
	if c.Kept {
		done = "kept"
	}
	return fmt.Sprintf("%s: %s the %s's value of %s %s", c.Mutator, done, c.Source, c.Field, c.Key)
}

// Failure is the failure of a mutator.
type Failure struct {
	Mutator string
	Err     error
	// Stack is the stack trace of a panic. It is empty for other failures.
	Stack string
}

// Mutate runs the chain. If a mutator fails, panics, or returns an invalid key, Mutate discards its
// output and reports the failure. The other mutators still run.
func (c *Chain) Mutate(in mutators.Input) Result {
	result := Result{Annotations: map[string]string{}, Labels: map[string]string{}}
	for _, l := range c.links {
		before := len(result.Conflicts)
		out, stack, err := l.run(in)
		if err != nil {
			result.Failures = append(result.Failures, Failure{Mutator: l.name, Err: err, Stack: stack})
		}
		if l.required && result.Refused == nil {
			result.Refused = l.refusal(out, err)
		}
		merge := func(field string, values, into, binding, pod map[string]string, replace bool, changing []string) {
			for short, value := range values {
				key := l.prefix + short
				source, differs := held(key, value, binding, pod)
				if differs && (source == sourcePod || !slices.Contains(changing, short)) {
					result.Conflicts = append(result.Conflicts, Conflict{Mutator: l.name, Field: field, Key: key, Source: source, Kept: !replace})
				}
				if !differs || replace {
					into[key] = value
				}
			}
		}
		merge("annotation", out.Annotations, result.Annotations, in.Binding.Annotations, in.Pod.Annotations, true, out.Changing)
		merge("label", out.Labels, result.Labels, in.Binding.Labels, in.Pod.Labels, out.ReplaceLabels, nil)
		slices.SortFunc(result.Conflicts[before:], byFieldAndKey)
	}
	return result
}

// byFieldAndKey orders the conflicts of one mutator: annotations first.
func byFieldAndKey(a, b Conflict) int {
	return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Key, b.Key))
}

// Refusal is the error of a required mutator, which rejects the bind.
type Refusal struct {
	Mutator, Message, Advice string
	// Cause is the mutator's error, if it failed.
	Cause error
}

// Error implements error.
func (r *Refusal) Error() string { return r.Mutator + ": " + r.Message + "; " + r.Advice }

// Unwrap returns the cause, if any.
func (r *Refusal) Unwrap() error { return r.Cause }

// refusal returns the error of a required mutator, or nil.
func (l link) refusal(out mutators.Output, err error) *Refusal {
	switch {
	case err != nil:
		return &Refusal{
			Mutator: l.name, Message: fmt.Sprintf("the required mutator failed: %v", err),
			Advice: "see the log of Prebind, or remove the mutator from --required-mutators", Cause: err,
		}
	case len(out.Missing) > 0:
		return &Refusal{
			Mutator: l.name, Message: "the mutator is required, but " + strings.Join(out.Missing, ", "),
			Advice: "choose another node, or fix this one",
		}
	default:
		return nil
	}
}

// held reports whether the Binding or, if it lacks the key, the pod has a different value for the key.
// The Binding comes first because its value replaces that of the pod in the API server.
func held(key, value string, binding, pod map[string]string) (source string, differs bool) {
	if had, ok := binding[key]; ok {
		return sourceBinding, had != value
	}
	had, ok := pod[key]
	return sourcePod, ok && had != value
}

func (l link) run(in mutators.Input) (out mutators.Output, stack string, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, stack, err = mutators.Output{}, string(debug.Stack()), fmt.Errorf("panic: %v", r)
		}
	}()
	if out, err = l.mutator.Mutate(in); err == nil {
		err = check(out)
	}
	if err != nil {
		return mutators.Output{}, "", err
	}
	return out, "", nil
}

// check returns an error for invalid output. The API server would store a pod with such output, but
// reject its updates. If there are several errors, check returns always the same one.
func check(out mutators.Output) error {
	var invalid []string
	for _, values := range []map[string]string{out.Annotations, out.Labels} {
		for short := range values {
			// A key with a slash is invalid, because the prefix already contains one.
			if strings.Contains(short, "/") || len(validation.IsQualifiedName(short)) > 0 {
				invalid = append(invalid, fmt.Sprintf("it returned the invalid key %q", short))
			}
		}
	}
	for short, value := range out.Labels {
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			invalid = append(invalid, fmt.Sprintf("it returned the label %q with the value %q: %s", short, value, strings.Join(problems, "; ")))
		}
	}
	if len(invalid) == 0 {
		return nil
	}
	return errors.New(slices.Min(invalid))
}
