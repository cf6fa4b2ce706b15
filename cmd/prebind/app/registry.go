// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
	"github.com/prebind/prebind/binder/notify"
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

// resourceClaimKind is not there in every cluster.
var resourceClaimKind = resourcev1.SchemeGroupVersion.WithKind("ResourceClaim")

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
				args, err := argumentsAs[*topologyArguments](a)
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
				args, err := argumentsAs[*nodeInfoArguments](a)
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
			Permissions: shipped("mutators/device-info"),
			Build:       func(Arguments) (mutators.Mutator, error) { return deviceinfo.New(), nil },
		},
	}
}

// registeredPlugins is every PreBind plugin that is compiled in, in the order in
// which they run: what only looks comes first, and what cannot be undone last.
func registeredPlugins() []Plugin {
	freeVolumes, selections := volumebinding.NewFreeVolumes(), volumebinding.NewSelections(clock.RealClock{})
	return []Plugin{
		{
			Name:        nodestate.Name,
			On:          true,
			Description: "sees that the node is as the scheduler believed: ready, not cordoned, taints, affinity, and what annotations expect",
			Annotations: "expect, expect-conditions, wait",
			Arguments:   defaultNodeStateArguments,
			Build: func(d Deps) (api.PreBinder, error) {
				args, err := argumentsAs[*nodeStateArguments](d.Arguments)
				if err != nil {
					return nil, err
				}
				checks, err := nodestate.ParseChecks(args.Checks)
				if err != nil {
					return nil, err
				}
				return nodestate.New(nodestate.Options{
					Cached: d.Cached, Live: d.Live, Changes: d.Changes, Clock: d.Clock, Domain: d.Domain,
					Checks: checks, MaxWait: args.MaxWait,
				})
			},
		},
		{
			Name:        device.Name,
			On:          true,
			Description: "gives the devices that annotations name to one pod at a time",
			Annotations: "<resource>, node-lock",
			Watches:     always(device.Watches),
			Caches:      device.Caches,
			Permissions: shipped("plugins/device"),
			Index: func(ctx context.Context, indexer client.FieldIndexer, _ Arguments) error {
				return device.SetupIndexes(ctx, indexer)
			},
			Arguments: defaultDeviceArguments,
			Build: func(d Deps) (api.PreBinder, error) {
				args, err := argumentsAs[*deviceArguments](d.Arguments)
				if err != nil {
					return nil, err
				}
				return device.New(device.Options{
					Cached: d.Cached, Live: d.Live, Writer: d.Writer, Changes: d.Changes, Clock: d.Clock, Domain: d.Domain, Namespace: d.Namespace,
					NodeLocks: args.NodeLocks, NodeLockTimeout: args.NodeLockTimeout,
				})
			},
		},
		{
			Name:        resourceclaims.Name,
			On:          true,
			Description: "reserves the pod's ResourceClaims and waits for their devices",
			Requires:    []schema.GroupVersionKind{resourceClaimKind},
			Arguments:   defaultResourceClaimsArguments,
			Watches: func(a Arguments) map[string]client.Object {
				if allocates(a) {
					return resourceclaims.OwnedWatches()
				}
				return resourceclaims.Watches()
			},
			Permissions: func(a Arguments, namespace string) ([]Permission, error) {
				if allocates(a) {
					return shipped("plugins/resource-claims", "plugins/resource-claims-allocate")(a, namespace)
				}
				return shipped("plugins/resource-claims")(a, namespace)
			},
			Index: func(ctx context.Context, indexer client.FieldIndexer, a Arguments) error {
				if err := resourceclaims.SetupIndexes(ctx, indexer); err != nil || !allocates(a) {
					return err
				}
				return resourceclaims.SetupOwnedIndexes(ctx, indexer)
			},
			Build: newResourceClaims,
		},
		{
			Name:        volumebinding.Name,
			On:          true,
			Description: "binds and waits for the pod's PersistentVolumeClaims",
			Watches:     always(volumebinding.Watches),
			Caches:      volumebinding.Caches,
			Permissions: shipped("plugins/volumebinding"),
			Index: func(ctx context.Context, indexer client.FieldIndexer, _ Arguments) error {
				return volumebinding.SetupIndexes(ctx, indexer)
			},
			Handlers: map[string]toolscache.ResourceEventHandler{"PersistentVolume": freeVolumes, "PersistentVolumeClaim": selections},
			Build: func(d Deps) (api.PreBinder, error) {
				return volumebinding.New(volumebinding.Options{
					Cached: d.Cached, Live: d.Live, Writer: d.Writer, Changes: d.Changes, Free: freeVolumes,
					Selections: selections, Clock: d.Clock,
				})
			},
		},
	}
}

// newResourceClaims builds the plugin, with an allocator where the operator owns
// DeviceClasses by Prebind.
func newResourceClaims(d Deps) (api.PreBinder, error) {
	args, err := argumentsAs[*resourceClaimsArguments](d.Arguments)
	if err != nil {
		return nil, err
	}
	options := resourceclaims.Options{
		Cached: d.Cached, Live: d.Live, Writer: d.Writer, Status: d.Status, Changes: d.Changes, Clock: d.Clock, Domain: d.Domain,
		BindingTimeout: args.BindingTimeout,
	}
	if len(args.Allocate) > 0 {
		owned, err := resourceclaims.NewOwnedClasses(resourceclaims.OwnedOptions{
			Classes: args.Allocate, Cached: d.Cached, Live: d.Live, Writer: d.Writer, Status: d.Status, Clock: d.Clock, Namespace: d.Namespace,
		})
		if err != nil {
			return nil, err
		}
		options.Allocator = owned
	}
	return resourceclaims.New(options)
}

// allocates says whether the operator owns DeviceClasses by Prebind.
func allocates(a Arguments) bool {
	args, err := argumentsAs[*resourceClaimsArguments](a)
	return err == nil && len(args.Allocate) > 0
}

// always makes a Plugin.Watches of what is watched whatever the arguments are.
func always(watches func() map[string]client.Object) func(Arguments) map[string]client.Object {
	return func(Arguments) map[string]client.Object { return watches() }
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
	Permissions func(a Arguments, namespace string) ([]Permission, error)
	// Arguments returns new ones with their defaults; nil where there are none.
	Arguments func() Arguments
	// Build is called whenever a configuration that has the mutator on is put in force,
	// with valid arguments that are never changed; nil where there are none.
	Build func(a Arguments) (mutators.Mutator, error)
}

// Plugin is an entry of the list of PreBind plugins. Name, Description and Build
// are required.
type Plugin struct {
	// Name in kebab-case: that of the plugin that Build returns.
	Name string
	// Description is a line for 'prebind plugins'.
	Description string
	// On says that '*' of --prebind-plugins includes it.
	On bool
	// Annotations are the keys behind <name>.<domain>/ that the plugin reads, for
	// 'prebind plugins'.
	Annotations string
	// Watches returns the objects, by kind, that the cache holds, and whose changes
	// the hub tells of, while the plugin is on. Prebind needs the permission to
	// list and watch them. Pods that are not bound and nodes are there always.
	Watches func(a Arguments) map[string]client.Object
	// Requires lists the kinds without which the plugin has nothing to do: where the
	// API server does not know one of them, the plugin is left out, with a line in
	// the log.
	Requires []schema.GroupVersionKind
	// Caches narrows what the cache holds of the watched kinds; namespace is
	// Prebind's own. Two plugins cannot narrow one kind.
	Caches func(namespace string) map[client.Object]cache.ByObject
	// Handlers get the events of kinds that Watches returns, by kind. They are added once
	// in the life of the process. A process that starts with the plugin switched on is not
	// ready before they have seen all objects.
	Handlers map[string]toolscache.ResourceEventHandler
	// Index adds the indexes to the cache that the plugin needs with the arguments. It is
	// called again when they change; the indexer skips indexes that it has.
	Index func(ctx context.Context, indexer client.FieldIndexer, a Arguments) error
	// Permissions are all that Prebind needs while the plugin is on, those for Watches
	// included; namespace is Prebind's own. Where one is missing, Prebind does not
	// start, or keeps its old configuration. Nil leaves it to the plugin to fail.
	Permissions func(a Arguments, namespace string) ([]Permission, error)
	// Arguments returns new ones with their defaults; nil where there are none.
	Arguments func() Arguments
	// Build is called when the plugin is switched on, and when its arguments change.
	// What an earlier one has under way, that one brings to its end: the two know
	// nothing of each other, like two replicas.
	Build func(d Deps) (api.PreBinder, error)
}

// Deps is what plugins are built from.
type Deps struct {
	// Cached reads what is watched; other kinds are an error. What it returns is
	// shared and must not be changed.
	Cached client.Reader
	// Live reads from the API server.
	Live client.Reader
	// Writer writes to the API server, with Prebind's permissions.
	Writer client.Writer
	// Status writes the status of objects, in the same way.
	Status client.StatusClient
	// Changes tells when an object that is watched changes.
	Changes *notify.Hub
	Clock   clock.WithDelayedExecution
	// Arguments are the plugin's own, valid, and never changed; nil where there are
	// none.
	Arguments Arguments
	// Domain is that of all annotations.
	Domain string
	// Namespace is that of Prebind's own objects.
	Namespace string
}

// Option adds to the program; see NewCommand.
type Option func(*registry)

// registry is all that is compiled in, each in the order in which it runs.
type registry struct {
	mutators []Mutator
	plugins  []Plugin
}

// WithMutator compiles a mutator in, to run after those that Prebind brings.
func WithMutator(m Mutator) Option {
	return func(r *registry) { r.mutators = append(r.mutators, m) }
}

// WithPlugin compiles a PreBind plugin in, to run after those that Prebind
// brings. It is the WithPlugin of kube-scheduler's command.
func WithPlugin(p Plugin) Option {
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
		if err := check("PreBind plugin", p.Name, p.Name != "" && p.Description != "" && p.Build != nil); err != nil {
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

func (m Mutator) entry() entry { return entry{name: m.Name, on: m.On} }
func (p Plugin) entry() entry  { return entry{name: p.Name, on: p.On} }
