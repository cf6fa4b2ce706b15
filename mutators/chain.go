// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutators

import (
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// reserved is the name under which the binder itself writes annotations.
const reserved = "binder"

// Chain runs mutators in their configured order and owns their keys. It is safe
// for concurrent use.
type Chain struct {
	links []link
}

type link struct {
	mutator Mutator
	prefix  string
}

// NewChain returns the chain of these mutators, in this order, under the
// annotation domain. Two mutators with one name, or a name that makes no valid
// annotation prefix, are an error.
func NewChain(domain string, list ...Mutator) (*Chain, error) {
	c := &Chain{}
	seen := map[string]bool{}
	for _, m := range list {
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
		prefix := name + "." + domain
		if problems := validation.IsDNS1123Subdomain(prefix); len(problems) > 0 {
			return nil, fmt.Errorf("mutator %q: the annotation prefix %q is not valid: %s", name, prefix, strings.Join(problems, "; "))
		}
		c.links = append(c.links, link{mutator: m, prefix: prefix + "/"})
	}
	return c, nil
}

// Len is the number of mutators.
func (c *Chain) Len() int { return len(c.links) }

// Result is what the whole chain adds to a Binding.
type Result struct {
	// Annotations by complete key; the caller owns the map.
	Annotations map[string]string
	// Replaced lists, in order, the keys for which the Binding or the pod had
	// another value. The mutator's value stands.
	Replaced []Replaced
	// Failures lists, in order, the mutators that failed or panicked. Their keys
	// are left out.
	Failures []Failure
}

// Replaced is a value that a mutator's own value replaces.
type Replaced struct {
	Mutator string
	Key     string
	// Source is where the other value stood: "Binding" or "pod".
	Source string
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
	result := Result{Annotations: map[string]string{}}
	for _, l := range c.links {
		out, stack, err := l.run(in)
		if err != nil {
			result.Failures = append(result.Failures, Failure{Mutator: l.mutator.Name(), Err: err, Stack: stack})
			continue
		}
		for _, short := range slices.Sorted(maps.Keys(out.Annotations)) {
			key, value := l.prefix+short, out.Annotations[short]
			result.Annotations[key] = value
			if source, differs := held(in, key, value); differs {
				result.Replaced = append(result.Replaced, Replaced{Mutator: l.mutator.Name(), Key: key, Source: source})
			}
		}
	}
	return result
}

// held tells whether the Binding, or else the pod, holds another value of the
// key. The Binding's wins when the API server merges the two, so it is the one
// that counts.
func held(in Input, key, value string) (source string, differs bool) {
	if had, ok := in.Binding.Annotations[key]; ok {
		return "Binding", had != value
	}
	had, ok := in.Pod.Annotations[key]
	return "pod", ok && had != value
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
	for short := range out.Annotations {
		// A slash in the key would be the second one, which is not valid.
		if problems := validation.IsQualifiedName(l.prefix + short); len(problems) > 0 {
			return Output{}, "", fmt.Errorf("it returned %q, which is no annotation key of its own", short)
		}
	}
	return out, "", nil
}
