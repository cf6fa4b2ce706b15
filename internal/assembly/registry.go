// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assembly builds the mutators and plugins that a configuration switches on, and adds their
// caches to the manager.
package assembly

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/mutators"
)

// Registry contains all registered mutators and plugins, in the order in which they run.
type Registry struct {
	Mutators []mutators.Registration
	Plugins  []framework.Registration
}

// Components returns the registry as components of a configuration.
func (r *Registry) Components() configuration.Registered {
	var all configuration.Registered
	for _, m := range r.Mutators {
		all.Mutators = append(all.Mutators, configuration.Component{Name: m.Name, On: m.On, Arguments: m.Arguments})
	}
	for _, p := range r.Plugins {
		all.Plugins = append(all.Plugins, configuration.Component{Name: p.Name, On: p.On, Arguments: p.Arguments})
	}
	return all
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

// MutatorsOf returns the mutators that the configuration switches on.
func (r *Registry) MutatorsOf(c *configuration.PrebindConfiguration) []mutators.Registration {
	on := c.SelectedMutators()
	return slices.DeleteFunc(slices.Clone(r.Mutators), func(m mutators.Registration) bool { return !slices.Contains(on, m.Name) })
}

// PluginsOf returns the PreBind plugins that the configuration switches on.
func (r *Registry) PluginsOf(c *configuration.PrebindConfiguration) []framework.Registration {
	on := c.SelectedPlugins()
	return slices.DeleteFunc(slices.Clone(r.Plugins), func(p framework.Registration) bool { return !slices.Contains(on, p.Name) })
}
