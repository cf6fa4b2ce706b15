// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/config/v1alpha1"
)

// Registration describes a PreBind plugin. Name, Description, and New are required.
type Registration struct {
	// Name in kebab-case. The plugin that New returns has the same name. Outside Prebind's repository, begin it with the name of your
	// organization: a name that a later version of Prebind uses is an error.
	Name string
	// Description is one line for 'prebind plugins'.
	Description string
	// On means that '*' in --prebind-plugins includes the plugin.
	On bool
	// AnnotationsHelp is the list of keys behind <name>.prebind.dev/ that 'prebind plugins'
	// shows, such as "name, timeout". Nothing else uses it: the plugin reads its annotations
	// with BindContext.Parameter.
	AnnotationsHelp string
	// Arguments returns arguments with their defaults. Nil means no arguments.
	Arguments func() Arguments
	// Watches contains an example of each kind that the cache holds while the plugin is on.
	// Changes of these kinds wake waits. Pods without a node, and nodes, are always watched; for pods with a node,
	// use a Selection or Handle.Live. The role of
	// the plugin must grant list and watch, and get for reads from the API server. A new replica is not ready
	// while the API server forbids a watch.
	Watches []client.Object
	// AddToScheme adds types of custom resources that the plugin reads to the scheme of Prebind's caches and
	// clients. Nil means none. Built-in kinds are always there.
	AddToScheme func(*runtime.Scheme) error
	// Requires lists required kinds. If the API server does not serve one of them, Prebind
	// omits the plugin and logs it. If the kinds are those of Prebind, and the configuration names the plugin or the first kind is served, the
	// process ends with an error.
	Requires []schema.GroupVersionKind
	// Selections returns more objects that the cache holds while the plugin is on. Nil means none. namespace is Prebind's own.
	// The role of the plugin must grant get, list, and watch on their kinds.
	Selections func(namespace string, a Arguments) []Selection
	// Metrics are served with those of Prebind, also while the plugin is off. Names begin with
	// prebind_<plugin> or prebind_<its objects>, and labels never contain pods, nodes or namespaces.
	Metrics []prometheus.Collector
	// New builds the plugin. It is called at most once per process. The arguments are valid and do not change.
	New func(h Handle, a Arguments) (Plugin, error)
}

// Arguments are the arguments of one plugin; see v1alpha1.Arguments.
type Arguments = v1alpha1.Arguments

// Build returns a Registration.New that calls build with the arguments in their own type.
func Build[T Arguments](build func(h Handle, args T) (Plugin, error)) func(Handle, Arguments) (Plugin, error) {
	return func(h Handle, a Arguments) (Plugin, error) {
		args, err := v1alpha1.ArgumentsAs[T](a)
		if err != nil {
			return nil, err
		}
		return build(h, args)
	}
}
