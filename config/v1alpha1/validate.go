// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Waiter is implemented by arguments with a wait time. The wait must not be longer than
// budgets.maxPrebindTimeout.
type Waiter interface {
	// LongestWait returns the maximum wait and its field.
	LongestWait() (field string, wait time.Duration)
}

// Validate returns all problems. Fields are paths in the file, such as
// budgets.hold and namespaces[1].mode.
func (c *PrebindConfiguration) Validate() []Problem {
	var all problems
	b := c.Budgets
	all.check(knownMode(c.Mode), "mode", "must be %s, got %q", modeNames(), c.Mode)
	all.check(b.Hold > 0, "budgets.hold", "must be positive, got %s", b.Hold)
	all.check(b.MaxHolds > 0, "budgets.maxHolds", "must be positive, got %d", b.MaxHolds)
	all.check(b.PreBindTimeout > 0, "budgets.prebindTimeout", "must be positive, got %s", b.PreBindTimeout)
	all.check(b.MaxPreBindTimeout >= b.PreBindTimeout, "budgets.maxPrebindTimeout", "must be at least budgets.prebindTimeout (%s), got %s", b.PreBindTimeout, b.MaxPreBindTimeout)
	mutators, err := c.SelectedMutators()
	all.check(err == nil, "mutators", "%w", err)
	if err == nil {
		for i, name := range c.RequiredMutators {
			all.check(slices.Contains(mutators, name), fmt.Sprintf("requiredMutators[%d]", i), "must be a mutator that is switched on, got %q", name)
		}
	}
	_, err = c.SelectedPlugins()
	all.check(err == nil, "prebindPlugins", "%w", err)
	for i, r := range c.Namespaces {
		all = append(all, r.problems(fmt.Sprintf("namespaces[%d]", i))...)
	}
	for _, a := range c.Arguments {
		for _, p := range a.Validate() {
			all = append(all, Problem{Field: "arguments." + a.Name + "." + p.Field, Err: p.Err})
		}
		if w, ok := a.Arguments.(Waiter); ok {
			field, wait := w.LongestWait()
			all.check(wait <= b.MaxPreBindTimeout, "arguments."+a.Name+"."+field, "must be at most budgets.maxPrebindTimeout (%s), got %s", b.MaxPreBindTimeout, wait)
		}
	}
	return all
}

// problems returns all problems of the rule. field is the path of the rule.
func (r NamespaceRule) problems(field string) problems {
	var all problems
	all.check(len(r.Names) > 0, field, "requires names")
	all.check(r.Mode != "" || r.PreBindTimeout != 0 || r.MaxPreBindTimeout != 0, field, "requires mode, prebindTimeout or maxPrebindTimeout")
	for i, name := range r.Names {
		_, err := path.Match(name, "")
		all.check(err == nil && name != "", fmt.Sprintf("%s.names[%d]", field, i), "must be a namespace or a pattern such as team-*, got %q", name)
	}
	all.check(r.Mode == "" || knownMode(r.Mode), field+".mode", "must be %s, got %q", modeNames(), r.Mode)
	all.check(r.PreBindTimeout >= 0, field+".prebindTimeout", "must not be negative, got %s", r.PreBindTimeout)
	all.check(r.MaxPreBindTimeout >= 0, field+".maxPrebindTimeout", "must not be negative, got %s", r.MaxPreBindTimeout)
	all.check(r.MaxPreBindTimeout == 0 || r.MaxPreBindTimeout >= r.PreBindTimeout, field+".maxPrebindTimeout", "must be at least prebindTimeout (%s), got %s", r.PreBindTimeout, r.MaxPreBindTimeout)
	return all
}

type problems []Problem

func (p *problems) check(ok bool, field, format string, args ...any) {
	if !ok {
		*p = append(*p, Problem{Field: field, Err: fmt.Errorf(format, args...)})
	}
}

func knownMode(m Mode) bool { return slices.Contains(Modes(), m) }

func modeNames() string {
	return fmt.Sprintf("%s, %s or %s", ModeEnforce, ModeAudit, ModeOff)
}

// SelectedMutators returns the names of the mutators that are on, in order of registration.
func (c *PrebindConfiguration) SelectedMutators() ([]string, error) {
	return selected(c.registered.Mutators, "mutator", c.Mutators)
}

// SelectedPlugins returns the names of the PreBind plugins that are on, in order of registration.
func (c *PrebindConfiguration) SelectedPlugins() ([]string, error) {
	return selected(c.registered.Plugins, "PreBind plugin", c.PreBindPlugins)
}

// selected returns the names that the toggles switch on, in the order of the list. Toggles
// have the format of --controllers of kube-controller-manager: a toggle with a name
// overrides "*".
func selected(list []Component, what string, toggles []string) ([]string, error) {
	var known []string
	for _, c := range list {
		known = append(known, c.Name)
	}
	for _, t := range toggles {
		if name := strings.TrimPrefix(t, "-"); t != "*" && !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown %s %q: must be one of %s", what, name, strings.Join(known, ", "))
		}
	}
	var on []string
	for _, c := range list {
		named, off := slices.Contains(toggles, c.Name), slices.Contains(toggles, "-"+c.Name)
		switch {
		case named && off:
			return nil, fmt.Errorf("%s %q is switched both on and off", what, c.Name)
		case named, !off && c.On && slices.Contains(toggles, "*"):
			on = append(on, c.Name)
		}
	}
	return on, nil
}

// Summary returns the mode, and the mutators and plugins that are on, as one line. The
// configuration must be valid.
func (c *PrebindConfiguration) Summary() string {
	list := func(names []string, _ error) string {
		return cmp.Or(strings.Join(names, ", "), "none")
	}
	return fmt.Sprintf("mode %s, mutators %s, PreBind plugins %s", c.Mode, list(c.SelectedMutators()), list(c.SelectedPlugins()))
}
