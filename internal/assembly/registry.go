// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assembly builds the mutators and plugins that a configuration switches on, and adds their
// caches to the manager.
package assembly

import (
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// Check returns an error if an entry is incomplete, if its name is not unique or not valid in the keys of its annotations, or if two
// plugins narrow the same kind in the cache in different ways.
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
	_, err := r.narrowings("")
	return err
}

// narrowing is how Prebind's cache contains a kind.
type narrowing struct {
	example client.Object
	how     cache.ByObject
	// first is the name of the first plugin that narrows the kind, or Prebind.
	first string
	// by are the plugins that read the kind from this cache. Nil means all plugins and the mutators.
	by sets.Set[string]
}

// narrowings returns the kinds that Prebind and the plugins narrow, by name. It returns an error if two of them narrow a kind in different ways.
func (r *Registry) narrowings(namespace string) (map[string]*narrowing, error) {
	all := map[string]*narrowing{
		"Pod":  {example: &corev1.Pod{}, first: "Prebind", how: cache.ByObject{Field: fields.OneTermEqualSelector("spec.nodeName", ""), Transform: trimPod}},
		"Node": {example: &corev1.Node{}, first: "Prebind", how: cache.ByObject{Transform: trimNode}},
	}
	for _, p := range r.Plugins {
		if p.Caches == nil {
			continue
		}
		for example, how := range p.Caches(namespace) {
			kind := framework.KindOf(example)
			n, ok := all[kind]
			if !ok {
				n = &narrowing{example: example, how: how, first: p.Name, by: sets.New[string]()}
				all[kind] = n
			} else if !sameNarrowing(n.how, how) {
				return nil, fmt.Errorf("PreBind plugin %q: Caches must not contain %s, which %s already narrows in another way", p.Name, kind, n.first)
			}
			n.by.Insert(p.Name)
		}
	}
	return all, nil
}

// sameNarrowing returns whether both narrow a kind by the same transform function only.
func sameNarrowing(a, b cache.ByObject) bool {
	function := func(o cache.ByObject) uintptr { return reflect.ValueOf(o.Transform).Pointer() }
	same := a.Transform != nil && b.Transform != nil && function(a) == function(b)
	a.Transform, b.Transform = nil, nil
	return same && reflect.DeepEqual(a, b)
}

// MutatorsOf returns the mutators that the configuration switches on.
func (r *Registry) MutatorsOf(c *configuration.PrebindConfiguration) ([]mutators.Registration, error) {
	on, err := c.SelectedMutators()
	return slices.DeleteFunc(slices.Clone(r.Mutators), func(m mutators.Registration) bool { return !slices.Contains(on, m.Name) }), err
}

// PluginsOf returns the PreBind plugins that the configuration switches on.
func (r *Registry) PluginsOf(c *configuration.PrebindConfiguration) ([]framework.Registration, error) {
	on, err := c.SelectedPlugins()
	return slices.DeleteFunc(slices.Clone(r.Plugins), func(p framework.Registration) bool { return !slices.Contains(on, p.Name) }), err
}
