// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutators

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/mutators/internal/keys"
)

// reserved is the name under which the binder itself writes annotations.
const reserved = "binder"

// Options of a Chain.
type Options struct {
	// Domain of all keys.
	Domain string
	// Mutators in the order in which they run.
	Mutators []Mutator
	// Required names those without whose output no pod is bound.
	Required []string
}

// Chain runs mutators in their configured order and owns their keys. It is safe
// for concurrent use.
type Chain struct {
	links []link
}

type link struct {
	mutator  Mutator
	name     string
	prefix   string
	required bool
}

// NewChain checks the options and returns the chain. Two mutators with one name,
// a name that makes no valid annotation prefix, or a required one that is not in
// the chain, are an error.
func NewChain(o Options) (*Chain, error) {
	c := &Chain{}
	seen := map[string]bool{}
	for _, m := range o.Mutators {
		name := m.Name()
		if seen[name] {
			return nil, fmt.Errorf("mutator %q is registered twice", name)
		}
		seen[name] = true
		if name == reserved {
			return nil, fmt.Errorf("mutator %q: the name is the binder's own", name)
		}
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return nil, fmt.Errorf("mutator %q: its name is no DNS label: %s", name, strings.Join(problems, "; "))
		}
		prefix := name + "." + o.Domain
		if problems := validation.IsDNS1123Subdomain(prefix); len(problems) > 0 {
			return nil, fmt.Errorf("mutator %q: the annotation prefix %q is not valid: %s", name, prefix, strings.Join(problems, "; "))
		}
		c.links = append(c.links, link{mutator: m, name: name, prefix: prefix + "/", required: slices.Contains(o.Required, name)})
	}
	for _, name := range o.Required {
		if !seen[name] {
			return nil, fmt.Errorf("mutator %q is required and not switched on", name)
		}
	}
	return c, nil
}

// Len is the number of mutators.
func (c *Chain) Len() int { return len(c.links) }

// Names returns the mutators' names in order; the caller owns the slice.
func (c *Chain) Names() []string {
	names := make([]string, 0, len(c.links))
	for _, l := range c.links {
		names = append(names, l.name)
	}
	return names
}

// Result is what the whole chain adds to a Binding.
type Result struct {
	// Annotations and Labels by complete key; the caller owns the maps.
	Annotations, Labels map[string]string
	// Conflicts lists, in order, the keys for which the Binding or the pod had
	// another value.
	Conflicts []Conflict
	// Failures lists, in order, the mutators that gave no output.
	Failures []Failure
	// Refused is the first error of a required mutator, or nil.
	Refused *Refusal
}

// Where the other value of a Conflict stood.
const (
	sourceBinding = "Binding"
	sourcePod     = "pod"
)

// Conflict is a value of a mutator where another one stood.
type Conflict struct {
	Mutator string
	// Field is "annotation" or "label".
	Field string
	Key   string
	// Source is where the other value stood: "Binding" or "pod".
	Source string
	// Kept says that the other value stands; otherwise the mutator's does.
	Kept bool
}

// String tells of the conflict in plain words.
func (c Conflict) String() string {
	if c.Kept {
		return fmt.Sprintf("%s: the %s's own value of the %s %s is kept", c.Mutator, c.Source, c.Field, c.Key)
	}
	return fmt.Sprintf("%s: the %s's value of the %s %s is replaced", c.Mutator, c.Source, c.Field, c.Key)
}

// Failure is a mutator that gave no output.
type Failure struct {
	Mutator string
	Err     error
	// Stack is that of a panic.
	Stack string
}

// Mutate runs the chain. A mutator that fails, panics or returns a key that is
// not its to write is left out as a whole and reported; the others go on.
func (c *Chain) Mutate(in Input) Result {
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
		for short, value := range out.Annotations {
			key := l.prefix + short
			result.Annotations[key] = value
			source, differs := held(key, value, in.Binding.Annotations, in.Pod.Annotations)
			if differs && (source == sourcePod || !slices.Contains(out.Changing, short)) {
				result.Conflicts = append(result.Conflicts, Conflict{Mutator: l.name, Field: "annotation", Key: key, Source: source})
			}
		}
		for short, value := range out.Labels {
			key := l.prefix + short
			source, differs := held(key, value, in.Binding.Labels, in.Pod.Labels)
			if differs {
				result.Conflicts = append(result.Conflicts,
					Conflict{Mutator: l.name, Field: "label", Key: key, Source: source, Kept: !out.ReplaceLabels})
			}
			if !differs || out.ReplaceLabels {
				result.Labels[key] = value
			}
		}
		slices.SortFunc(result.Conflicts[before:], byFieldAndKey)
	}
	return result
}

// byFieldAndKey orders the conflicts of one mutator: annotations first.
func byFieldAndKey(a, b Conflict) int {
	return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Key, b.Key))
}

// Refusal says why a required mutator ends a bind.
type Refusal struct {
	Mutator, Message, Advice string
	// Cause is the mutator's error, if it failed.
	Cause error
}

// Error implements error.
func (r *Refusal) Error() string { return r.Mutator + ": " + r.Message + "; " + r.Advice }

// Unwrap returns the cause, if there is one.
func (r *Refusal) Unwrap() error { return r.Cause }

// refusal is why a required mutator ends the bind, or nil.
func (l link) refusal(out Output, err error) *Refusal {
	switch {
	case err != nil:
		return &Refusal{
			Mutator: l.name, Message: fmt.Sprintf("this mutator is required and failed: %v", err),
			Advice: "see Prebind's log, or take it out of --required-mutators", Cause: err,
		}
	case len(out.Missing) > 0:
		return &Refusal{
			Mutator: l.name, Message: "this mutator is required, and " + strings.Join(out.Missing, ", "),
			Advice: "choose another node, or complete this one",
		}
	default:
		return nil
	}
}

// held tells whether the Binding, or else the pod, holds another value of the
// key. The Binding's wins when the API server merges the two, so it is the one
// that counts.
func held(key, value string, binding, pod map[string]string) (source string, differs bool) {
	if had, ok := binding[key]; ok {
		return sourceBinding, had != value
	}
	had, ok := pod[key]
	return sourcePod, ok && had != value
}

func (l link) run(in Input) (out Output, stack string, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, stack, err = Output{}, string(debug.Stack()), fmt.Errorf("it panicked: %v", r)
		}
	}()
	if out, err = l.mutator.Mutate(in); err != nil {
		return Output{}, "", err
	}
	if err := check(out); err != nil {
		return Output{}, "", err
	}
	return out, "", nil
}

// check says what the API server would store, and never update again, of the
// output. Of several mistakes it names the first by key, so that a mutator fails
// alike every time.
func check(out Output) error {
	for _, values := range []map[string]string{out.Annotations, out.Labels} {
		// A slash in the key would be the second one, which is not valid.
		if short, bad := first(values, func(short, _ string) bool { return !keys.Valid(short) }); bad {
			return fmt.Errorf("it returned %q, which is no key of its own", short)
		}
	}
	if short, bad := first(out.Labels, func(_, value string) bool { return !keys.ValidLabelValue(value) }); bad {
		return fmt.Errorf("it returned the label %q with the value %q: %s", short, out.Labels[short],
			strings.Join(validation.IsValidLabelValue(out.Labels[short]), "; "))
	}
	return nil
}

// first returns the first key for which is holds, if there is one.
func first(values map[string]string, is func(short, value string) bool) (found string, ok bool) {
	for short, value := range values {
		if is(short, value) && (!ok || short < found) {
			found, ok = short, true
		}
	}
	return found, ok
}
