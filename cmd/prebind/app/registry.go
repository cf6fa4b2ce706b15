// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/binder/plugins/nodestate"
	"github.com/prebind/prebind/binder/plugins/resourceclaims"
	"github.com/prebind/prebind/binder/plugins/volumebinding"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/bindinfo"
	"github.com/prebind/prebind/mutators/deviceinfo"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
)

// RegisteredMutators is every mutator that is compiled in, in the order in which they
// run.
func RegisteredMutators() []mutators.Registration {
	return []mutators.Registration{
		topology.Registration(),
		nodeinfo.Registration(),
		bindinfo.Registration(),
		deviceinfo.Registration(),
	}
}

// RegisteredPlugins is every PreBind plugin that is compiled in, in the order in which
// they run: those that only read come first, and those that cannot undo come last.
func RegisteredPlugins() []framework.Registration {
	return []framework.Registration{
		nodestate.Registration(),
		device.Registration(),
		resourceclaims.Registration(),
		volumebinding.Registration(),
	}
}

// Arguments are those of one entry.
type Arguments = framework.Arguments

// Problem is that of one field of the arguments.
type Problem = framework.Problem

// Option adds to the program; see NewCommand.
type Option func(*registry)

// registry is all that is compiled in, each in the order in which it runs.
type registry struct {
	mutators []mutators.Registration
	plugins  []framework.Registration
}

// WithMutator compiles a mutator in, to run after those that Prebind brings.
func WithMutator(m mutators.Registration) Option {
	return func(r *registry) { r.mutators = append(r.mutators, m) }
}

// WithPlugin compiles a PreBind plugin in, to run after those that Prebind
// brings. It is the WithPlugin of kube-scheduler's command.
func WithPlugin(p framework.Registration) Option {
	return func(r *registry) { r.plugins = append(r.plugins, p) }
}

// check returns an error for two entries of one name or one that is not
// complete: a mistake of whoever built the program.
func (r *registry) check() error {
	seen := map[string]bool{}
	check := func(what, name string, complete bool) error {
		if !complete {
			return fmt.Errorf("%s %q is registered without a name, a description, or a way to build it", what, name)
		}
		if seen[what+name] {
			return fmt.Errorf("%s %q is registered twice", what, name)
		}
		seen[what+name] = true
		return nil
	}
	for _, m := range r.mutators {
		if err := check("mutator", m.Name, m.Name != "" && m.Description != "" && m.New != nil); err != nil {
			return err
		}
	}
	for _, p := range r.plugins {
		if err := check("PreBind plugin", p.Name, p.Name != "" && p.Description != "" && p.New != nil); err != nil {
			return err
		}
	}
	return nil
}

// pluginNames are those of all PreBind plugins that are compiled in, on or off.
func (r *registry) pluginNames() []string {
	names := make([]string, 0, len(r.plugins))
	for _, p := range r.plugins {
		names = append(names, p.Name)
	}
	return names
}
