// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Registry contains all mutators and plugins that a configuration can switch on, in the order in which they run.
type Registry struct {
	Mutators []mutators.Registration
	Plugins  []framework.Registration
}

// Check returns an error if an entry is incomplete, or if its name is not unique or not valid in the keys of its annotations.
func (r *Registry) Check() error {
	seen := map[string]bool{framework.Binder: true}
	check := func(kind, name, description string, isNew bool) error {
		if name == "" || description == "" || !isNew {
			return fmt.Errorf("%s %q: Name, Description and New are required", kind, name)
		}
		if seen[name] {
			return fmt.Errorf("%s %q: registered twice, or another component has its name", kind, name)
		}
		seen[name] = true
		if problems := validation.IsDNS1123Subdomain(name + "." + v1alpha1.Domain); len(problems) > 0 {
			return fmt.Errorf("%s %q: the name is not valid as part of an annotation key: %s", kind, name, problems[0])
		}
		return nil
	}
	for _, m := range r.Mutators {
		if err := check("mutator", m.Name, m.Description, m.New != nil); err != nil {
			return err
		}
	}
	for _, p := range r.Plugins {
		if err := check("PreBind plugin", p.Name, p.Description, p.New != nil); err != nil {
			return err
		}
	}
	return nil
}

// SelectedMutators returns the mutators that are on, in order of registration.
func (c *PrebindConfiguration) SelectedMutators() []mutators.Registration {
	return slices.DeleteFunc(slices.Clone(c.registry.Mutators), func(m mutators.Registration) bool { return !selected(c.Mutators, m.Name, m.On) })
}

// SelectedPlugins returns the PreBind plugins that are on, in order of registration.
func (c *PrebindConfiguration) SelectedPlugins() []framework.Registration {
	return slices.DeleteFunc(slices.Clone(c.registry.Plugins), func(p framework.Registration) bool { return !selected(c.PreBindPlugins, p.Name, p.On) })
}

// selected returns whether the toggles switch the mutator or plugin on. on means that "*" includes it. Toggles have the format of
// --controllers of kube-controller-manager: a toggle with a name overrides "*".
func selected(toggles []string, name string, on bool) bool {
	return slices.Contains(toggles, name) || on && slices.Contains(toggles, "*") && !slices.Contains(toggles, "-"+name)
}

func mutatorNames(list []mutators.Registration) []string {
	var names []string
	for _, m := range list {
		names = append(names, m.Name)
	}
	return names
}

func pluginNames(list []framework.Registration) []string {
	var names []string
	for _, p := range list {
		names = append(names, p.Name)
	}
	return names
}
