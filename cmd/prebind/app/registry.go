// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
	"github.com/prebind/prebind/binder/notify"
	"github.com/prebind/prebind/binder/plugins/volumebinding"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/mutators/topology"
)

// registeredMutators is every mutator that is compiled in, in the order in which
// they run.
func registeredMutators() []mutatorSpec {
	return []mutatorSpec{
		{
			name:        topology.Name,
			on:          true,
			description: "labels of the node (zone, region, hostname; --topology-labels)",
			build: func(o *serveOptions) (mutators.Mutator, error) {
				return topology.New(topology.Options{Labels: o.topologyLabels})
			},
		},
	}
}

// registeredPlugins is every PreBind plugin that is compiled in, in the order in
// which they run.
func registeredPlugins() []pluginSpec {
	return []pluginSpec{
		{
			name:        volumebinding.Name,
			on:          true,
			description: "binds and waits for the pod's PersistentVolumeClaims",
			watches:     volumebinding.Watches,
			index:       volumebinding.SetupIndexes,
			build: func(d pluginDeps) (api.PreBinder, error) {
				return volumebinding.New(volumebinding.Options{Cached: d.cached, Live: d.live, Writer: d.writer, Changes: d.changes})
			},
		},
	}
}

// mutatorSpec is an entry of the list of mutators.
type mutatorSpec struct {
	name string
	// on says that '*' includes it.
	on          bool
	description string
	build       func(o *serveOptions) (mutators.Mutator, error)
}

// pluginSpec is an entry of the list of PreBind plugins.
type pluginSpec struct {
	name string
	// on says that '*' includes it.
	on          bool
	description string
	// watches lists the objects, by kind, that the cache has to hold while the
	// plugin is on.
	watches func() map[string]client.Object
	// index adds the plugin's indexes to the cache.
	index func(ctx context.Context, indexer client.FieldIndexer) error
	build func(d pluginDeps) (api.PreBinder, error)
}

// pluginDeps is what plugins are built from.
type pluginDeps struct {
	cached  client.Reader
	live    client.Reader
	writer  client.Writer
	changes *notify.Hub
}

func (s mutatorSpec) entry() entry { return entry{name: s.name, on: s.on} }
func (s pluginSpec) entry() entry  { return entry{name: s.name, on: s.on} }
