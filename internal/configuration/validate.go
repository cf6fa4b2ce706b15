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
		checkToggles(field.NewPath("mutators"), "mutator", mutatorNames(c.registry.Mutators), c.Mutators),
		checkToggles(field.NewPath("prebindPlugins"), "PreBind plugin", pluginNames(c.registry.Plugins), c.PreBindPlugins),
	)
	for i, name := range c.RequiredMutators {
		all = append(all, valid(slices.Contains(mutatorNames(c.SelectedMutators()), name), field.NewPath("requiredMutators").Index(i), name, "must be a mutator that is switched on")...)
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

// checkToggles returns an error for each toggle that is not a known name, or one that is also switched on.
func checkToggles(path *field.Path, what string, known, toggles []string) field.ErrorList {
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
	return fmt.Sprintf("mode %s, mutators %s, PreBind plugins %s", c.Mode, list(mutatorNames(c.SelectedMutators())), list(pluginNames(c.SelectedPlugins())))
}

// valid returns an error unless ok is set.
func valid(ok bool, path *field.Path, value any, detail string, args ...any) field.ErrorList {
	if ok {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, fmt.Sprintf(detail, args...))}
}
