// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/config/v1alpha1"
)

// Validate returns all invalid values.
func (c *PrebindConfiguration) Validate() field.ErrorList {
	b, budgets := c.Budgets, field.NewPath("budgets")
	all := slices.Concat(
		checkMode(field.NewPath("mode"), c.Mode),
		v1alpha1.Positive(budgets.Child("hold"), b.Hold),
		valid(b.MaxHolds > 0 && b.MaxHolds <= 256, budgets.Child("maxHolds"), b.MaxHolds, "must be from 1 to 256"),
		v1alpha1.Positive(budgets.Child("prebindTimeout"), b.PreBindTimeout),
		valid(b.MaxPreBindTimeout.Duration >= b.PreBindTimeout.Duration, budgets.Child("maxPrebindTimeout"), b.MaxPreBindTimeout,
			"must be at least budgets.prebindTimeout (%s)", b.PreBindTimeout.Duration),
		checkToggles(field.NewPath("mutators"), "mutator", c.registered.Mutators, c.Mutators),
		checkToggles(field.NewPath("prebindPlugins"), "PreBind plugin", c.registered.Plugins, c.PreBindPlugins),
	)
	for i, name := range c.RequiredMutators {
		all = append(all, valid(slices.Contains(c.SelectedMutators(), name), field.NewPath("requiredMutators").Index(i), name, "must be a mutator that is switched on")...)
	}
	for i, r := range c.Namespaces {
		all = append(all, r.validate(field.NewPath("namespaces").Index(i))...)
	}
	for _, a := range c.Arguments {
		path := field.NewPath("arguments", a.Name)
		all = append(all, a.Validate(path)...)
		if w, ok := a.Arguments.(v1alpha1.Waiter); ok {
			name, wait := w.LongestWait()
			all = append(all, valid(wait.Duration <= b.MaxPreBindTimeout.Duration, path.Child(name), wait,
				"must be at most budgets.maxPrebindTimeout (%s)", b.MaxPreBindTimeout.Duration)...)
		}
	}
	return all
}

func (r NamespaceRule) validate(at *field.Path) field.ErrorList {
	var all field.ErrorList
	if len(r.Names) == 0 {
		all = append(all, field.Required(at.Child("names"), ""))
	}
	if r.Mode == "" && r.PreBindTimeout.Duration == 0 && r.MaxPreBindTimeout.Duration == 0 && r.RejectAfter.Duration == 0 {
		all = append(all, field.Required(at, "mode, prebindTimeout, maxPrebindTimeout or rejectAfter"))
	}
	for i, name := range r.Names {
		_, err := path.Match(name, "")
		all = append(all, valid(err == nil && name != "", at.Child("names").Index(i), name, "must be a namespace or a pattern such as team-*")...)
	}
	if r.Mode != "" {
		all = append(all, checkMode(at.Child("mode"), r.Mode)...)
	}
	longest := at.Child("maxPrebindTimeout")
	return slices.Concat(all,
		valid(r.PreBindTimeout.Duration >= 0, at.Child("prebindTimeout"), r.PreBindTimeout, "must not be negative"),
		valid(r.MaxPreBindTimeout.Duration >= 0, longest, r.MaxPreBindTimeout, "must not be negative"),
		valid(r.RejectAfter.Duration >= 0, at.Child("rejectAfter"), r.RejectAfter, "must not be negative"),
		valid(r.MaxPreBindTimeout.Duration == 0 || r.MaxPreBindTimeout.Duration >= r.PreBindTimeout.Duration, longest, r.MaxPreBindTimeout,
			"must be at least prebindTimeout (%s)", r.PreBindTimeout.Duration))
}

func checkMode(at *field.Path, m Mode) field.ErrorList {
	return valid(slices.Contains(Modes(), m), at, m, "must be %s, %s or %s", ModeEnforce, ModeAudit, ModeOff)
}

// SelectedMutators returns the names of the mutators that are on, in order of registration.
func (c *PrebindConfiguration) SelectedMutators() []string {
	return selected(c.registered.Mutators, c.Mutators)
}

// SelectedPlugins returns the names of the PreBind plugins that are on, in order of registration.
func (c *PrebindConfiguration) SelectedPlugins() []string {
	return selected(c.registered.Plugins, c.PreBindPlugins)
}

// selected returns the names that the toggles switch on, in the order of the list. Toggles
// have the format of --controllers of kube-controller-manager: a toggle with a name
// overrides "*".
func selected(list []Component, toggles []string) []string {
	var on []string
	for _, c := range list {
		if slices.Contains(toggles, c.Name) || c.On && slices.Contains(toggles, "*") && !slices.Contains(toggles, "-"+c.Name) {
			on = append(on, c.Name)
		}
	}
	return on
}

// checkToggles returns an error for each toggle that names no component of the list, or one that is also switched on.
func checkToggles(path *field.Path, what string, list []Component, toggles []string) field.ErrorList {
	var known []string
	for _, c := range list {
		known = append(known, c.Name)
	}
	var all field.ErrorList
	for _, t := range toggles {
		name, value := strings.TrimPrefix(t, "-"), strings.Join(toggles, ",")
		all = slices.Concat(all,
			valid(t == "*" || slices.Contains(known, name), path, value, "unknown %s %q: must be one of %s", what, name, strings.Join(known, ", ")),
			valid(t == name || !slices.Contains(toggles, name), path, value, "%s %q is switched both on and off", what, name))
	}
	return all
}

// Summary returns the mode, and the mutators and plugins that are on, as one line.
func (c *PrebindConfiguration) Summary() string {
	list := func(names []string) string { return cmp.Or(strings.Join(names, ", "), "none") }
	return fmt.Sprintf("mode %s, mutators %s, PreBind plugins %s", c.Mode, list(c.SelectedMutators()), list(c.SelectedPlugins()))
}

// valid returns an error unless ok is set.
func valid(ok bool, path *field.Path, value any, detail string, args ...any) field.ErrorList {
	if ok {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, fmt.Sprintf(detail, args...))}
}
