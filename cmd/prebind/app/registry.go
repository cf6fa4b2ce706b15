// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/announce"
	"github.com/prebind/prebind/binder/plugins/device"
	"github.com/prebind/prebind/binder/plugins/nodeready"
	"github.com/prebind/prebind/binder/plugins/nodestate"
	"github.com/prebind/prebind/binder/plugins/policy"
	"github.com/prebind/prebind/binder/plugins/resourceclaims"
	"github.com/prebind/prebind/binder/plugins/startlimit"
	"github.com/prebind/prebind/binder/plugins/volumebinding"
	"github.com/prebind/prebind/internal/configuration"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/bindinfo"
	"github.com/prebind/prebind/mutators/deviceinfo"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
)

// RegisteredMutators returns the mutators of Prebind in the order in which they run.
func RegisteredMutators() []mutators.Registration {
	return []mutators.Registration{
		topology.Registration(),
		nodeinfo.Registration(),
		bindinfo.Registration(),
		deviceinfo.Registration(),
	}
}

// RegisteredPlugins returns the PreBind plugins of Prebind in the order in which they run:
// first announce, which accompanies the others, then those that only read, then those whose writes can show that the bind is rejected, later
// those that cannot roll back. node-ready reads the claims after volumebinding: a claim that is bound in the meantime needs its driver.
func RegisteredPlugins() []framework.Registration {
	return []framework.Registration{
		announce.Registration(),
		nodestate.Registration(),
		startlimit.Registration(),
		device.Registration(),
		resourceclaims.Registration(),
		policy.Registration(),
		volumebinding.Registration(),
		nodeready.Registration(),
	}
}

// Option adds a mutator or plugin to the program; see NewCommand.
type Option func(*configuration.Registry)

// WithMutator adds a mutator. It runs after those of Prebind.
func WithMutator(m mutators.Registration) Option {
	return func(r *configuration.Registry) { r.Mutators = append(r.Mutators, m) }
}

// WithPlugin adds a PreBind plugin, like WithPlugin in the command of kube-scheduler. It runs
// after those of Prebind.
func WithPlugin(p framework.Registration) Option {
	return func(r *configuration.Registry) { r.Plugins = append(r.Plugins, p) }
}

func newRegistry(options ...Option) *configuration.Registry {
	r := &configuration.Registry{Mutators: RegisteredMutators(), Plugins: RegisteredPlugins()}
	for _, option := range options {
		option(r)
	}
	return r
}
