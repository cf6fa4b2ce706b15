// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Registration returns the registry entry of the mutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		On:          true,
		Description: "labels of the node: zone, region, hostname, and those of --topology-labels; a path",
		Arguments:   func() v1alpha1.Arguments { return &Arguments{Labels: DefaultLabels()} },
		New: func(a v1alpha1.Arguments) (mutators.Mutator, error) {
			args, err := v1alpha1.ArgumentsAs[*Arguments](a)
			if err != nil {
				return nil, err
			}
			return New(args)
		},
	}
}

// Arguments are the arguments of the mutator.
type Arguments struct {
	// Labels are the node labels to copy. The package comment describes the entries. Two
	// entries without a star must not have the same key.
	Labels []string `json:"labels"`
	// Path are the node labels whose values, joined by '/', become the key "path". Label values
	// never contain '/'. If a label is missing or empty on the node, there is no path.
	Path []string `json:"path"`
	// PodLabels are the keys that also become labels of the pod, without prefix. "*" means
	// every key except path.
	PodLabels []string `json:"podLabels"`
	// ReplacePodLabels means that these labels replace existing values of the pod or the Binding.
	ReplacePodLabels bool `json:"replacePodLabels"`
}

// AddFlags implements v1alpha1.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Labels, "topology-labels", a.Labels,
		"Node labels that the mutator topology copies. Each entry is 'label', 'label=key', or a prefix such as 'example.com/net-*' or 'example.com/net-*=n-*'; '*' means every label. The default key is the part after the slash. Entries without a star win.")
	fs.StringSliceVar(&a.Path, "topology-path", a.Path,
		"Node labels from the widest to the narrowest. Their values, joined by '/', become the annotation topology.prebind.dev/path. If a label is missing, there is no path.")
	fs.StringSliceVar(&a.PodLabels, "topology-pod-labels", a.PodLabels,
		"Keys of --topology-labels that also become labels of the pod; '*' means all. Requires Kubernetes 1.35 or later.")
	fs.BoolVar(&a.ReplacePodLabels, "topology-replace-pod-labels", a.ReplacePodLabels,
		"Replace existing values of these labels on the pod or the Binding. By default, they are kept with a warning.")
}

// Validate implements v1alpha1.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	if _, invalid := a.build(path); invalid != nil {
		return field.ErrorList{invalid}
	}
	return nil
}
