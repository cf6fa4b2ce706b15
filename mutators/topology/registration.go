// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"github.com/spf13/pflag"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/registration"
)

// Registration returns the mutator's entry in the registry.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		On:          true,
		Description: "labels of the node (zone, region, hostname; --topology-labels), and its place as a path",
		Arguments:   func() registration.Arguments { return &Arguments{Labels: DefaultLabels()} },
		New: func(a registration.Arguments) (mutators.Mutator, error) {
			args, err := registration.ArgumentsAs[*Arguments](a)
			if err != nil {
				return nil, err
			}
			return New(args.options())
		},
	}
}

// Arguments of the mutator.
type Arguments struct {
	Labels           []string `yaml:"labels"`
	Path             []string `yaml:"path"`
	PodLabels        []string `yaml:"podLabels"`
	ReplacePodLabels bool     `yaml:"replacePodLabels"`
}

// AddFlags implements registration.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Labels, "topology-labels", a.Labels,
		"Node labels that the mutator topology copies, each as 'label', 'label=key', or by prefix as 'example.com/net-*' or 'example.com/net-*=n-*', where the star in the key stands for the rest; '*' is every label. The key is by default the part behind the slash. Entries without a star win.")
	fs.StringSliceVar(&a.Path, "topology-path", a.Path,
		"Node labels, from the widest place to the narrowest, whose values joined by '/' become the annotation topology.<domain>/path. A node that lacks one of them gives no path.")
	fs.StringSliceVar(&a.PodLabels, "topology-pod-labels", a.PodLabels,
		"Keys of --topology-labels, as they stand behind topology.<domain>/, that become labels of the pod as well; '*' for all of them. It takes Kubernetes 1.35 or later.")
	fs.BoolVar(&a.ReplacePodLabels, "topology-replace-pod-labels", a.ReplacePodLabels,
		"Let these labels replace the value that a pod or a Binding has. Otherwise that value is kept, and a warning says so.")
}

func (a *Arguments) options() Options {
	return Options{Labels: a.Labels, Path: a.Path, PodLabels: a.PodLabels, ReplacePodLabels: a.ReplacePodLabels}
}

// Validate implements registration.Arguments.
func (a *Arguments) Validate() []registration.Problem {
	_, err := New(Options{Labels: a.Labels})
	if err != nil {
		return registration.Invalid("labels", err)
	}
	if _, err := New(Options{Labels: a.Labels, Path: a.Path}); err != nil {
		return registration.Invalid("path", err)
	}
	_, err = New(a.options())
	return registration.Invalid("podLabels", err)
}
