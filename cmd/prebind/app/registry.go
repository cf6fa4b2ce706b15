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

// registeredMutators is every mutator that is compiled in, in the order in which
// they run.
func registeredMutators() []Mutator {
	return []Mutator{
		{
			Name:        topology.Name,
			On:          true,
			Description: "labels of the node (zone, region, hostname; --topology-labels), and its place as a path",
			Arguments:   defaultTopologyArguments,
			Build: func(a Arguments) (mutators.Mutator, error) {
				args, err := framework.ArgumentsAs[*topologyArguments](a)
				if err != nil {
					return nil, err
				}
				return topology.New(args.options())
			},
		},
		{
			Name:        nodeinfo.Name,
			Description: "facts of the node: instance type, capacity type, architecture, versions, addresses",
			Arguments:   func() Arguments { return &nodeInfoArguments{} },
			Build: func(a Arguments) (mutators.Mutator, error) {
				args, err := framework.ArgumentsAs[*nodeInfoArguments](a)
				if err != nil {
					return nil, err
				}
				return nodeinfo.New(nodeinfo.Options{Annotations: args.Annotations})
			},
		},
		{
			Name:        bindinfo.Name,
			Description: "who bound the pod, when, after how many calls and how long a wait",
			Build:       func(Arguments) (mutators.Mutator, error) { return bindinfo.New(), nil },
		},
		{
			Name:        deviceinfo.Name,
			Description: "the devices that the plugin device, or ResourceClaims, gave to the pod",
			Claims:      true,
			Permissions: func(Arguments) (framework.Permissions, error) { return framework.Shipped("mutators/device-info") },
			Build:       func(Arguments) (mutators.Mutator, error) { return deviceinfo.New(), nil },
		},
	}
}

// registeredPlugins is every PreBind plugin that is compiled in, in the order in which
// they run: those that only read come first, and those that cannot undo come last.
func registeredPlugins() []framework.Registration {
	return []framework.Registration{
		nodestate.Registration(),
		device.Registration(),
		resourceclaims.Registration(),
		volumebinding.Registration(),
	}
}

// Mutator is an entry of the list of mutators. Name, Description and Build are
// required.
type Mutator struct {
	// Name in kebab-case: that of the mutator that Build returns.
	Name string
	// Description is a line for 'prebind plugins'.
	Description string
	// On says that '*' of --mutators includes it.
	On bool
	// Claims asks for the devices of the pod's ResourceClaims in the input. Prebind
	// needs the permission to get, list and watch ResourceClaims for it.
	Claims bool
	// Permissions are those that Prebind needs besides while the mutator is on; nil for
	// none.
	Permissions func(a Arguments) (framework.Permissions, error)
	// Arguments returns new ones with their defaults; nil where there are none.
	Arguments func() Arguments
	// Build is called whenever a configuration that has the mutator on is put in force,
	// with valid arguments that are never changed; nil where there are none.
	Build func(a Arguments) (mutators.Mutator, error)
}

// Option adds to the program; see NewCommand.
type Option func(*registry)

// registry is all that is compiled in, each in the order in which it runs.
type registry struct {
	mutators []Mutator
	plugins  []framework.Registration
}

// WithMutator compiles a mutator in, to run after those that Prebind brings.
func WithMutator(m Mutator) Option {
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
		if err := check("mutator", m.Name, m.Name != "" && m.Description != "" && m.Build != nil); err != nil {
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

func mutatorEntry(m Mutator) entry               { return entry{name: m.Name, on: m.On} }
func pluginEntry(p framework.Registration) entry { return entry{name: p.Name, on: p.On} }
