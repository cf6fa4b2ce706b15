// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"github.com/spf13/pflag"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators/nodeinfo"
	"github.com/prebind/prebind/mutators/topology"
)

// Arguments and Problem are those of the registrations.
type (
	Arguments = framework.Arguments
	Problem   = framework.Problem
)

// topologyArguments are those of the mutator topology.
type topologyArguments struct {
	Labels           []string `yaml:"labels"`
	Path             []string `yaml:"path"`
	PodLabels        []string `yaml:"podLabels"`
	ReplacePodLabels bool     `yaml:"replacePodLabels"`
}

func defaultTopologyArguments() Arguments {
	return &topologyArguments{Labels: topology.DefaultLabels()}
}

// AddFlags implements Arguments.
func (a *topologyArguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Labels, "topology-labels", a.Labels,
		"Node labels that the mutator topology copies, each as 'label', 'label=key', or by prefix as 'example.com/net-*' or 'example.com/net-*=n-*', where the star in the key stands for the rest; '*' is every label. The key is by default the part behind the slash. Entries without a star win.")
	fs.StringSliceVar(&a.Path, "topology-path", a.Path,
		"Node labels, from the widest place to the narrowest, whose values joined by '/' become the annotation topology.<domain>/path. A node that lacks one of them gives no path.")
	fs.StringSliceVar(&a.PodLabels, "topology-pod-labels", a.PodLabels,
		"Keys of --topology-labels, as they stand behind topology.<domain>/, that become labels of the pod as well; '*' for all of them. It takes Kubernetes 1.35 or later.")
	fs.BoolVar(&a.ReplacePodLabels, "topology-replace-pod-labels", a.ReplacePodLabels,
		"Let these labels replace the value that a pod or a Binding has. Otherwise that value is kept, and a warning says so.")
}

func (a *topologyArguments) options() topology.Options {
	return topology.Options{Labels: a.Labels, Path: a.Path, PodLabels: a.PodLabels, ReplacePodLabels: a.ReplacePodLabels}
}

// Validate implements Arguments.
func (a *topologyArguments) Validate() []Problem {
	_, err := topology.New(topology.Options{Labels: a.Labels})
	if err != nil {
		return framework.InvalidField("labels", err)
	}
	if _, err := topology.New(topology.Options{Labels: a.Labels, Path: a.Path}); err != nil {
		return framework.InvalidField("path", err)
	}
	_, err = topology.New(a.options())
	return framework.InvalidField("podLabels", err)
}

// nodeInfoArguments are those of the mutator node-info.
type nodeInfoArguments struct {
	Annotations []string `yaml:"annotations"`
}

// AddFlags implements Arguments.
func (a *nodeInfoArguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Annotations, "node-info-annotations", a.Annotations,
		"Node annotations that the mutator node-info copies besides its facts, each as 'annotation' or 'annotation=key'.")
}

// Validate implements Arguments.
func (a *nodeInfoArguments) Validate() []Problem {
	_, err := nodeinfo.New(nodeinfo.Options{Annotations: a.Annotations})
	return framework.InvalidField("annotations", err)
}
