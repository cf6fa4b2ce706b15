// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeinfo

import (
	"github.com/spf13/pflag"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/registration"
)

// Registration returns the registry entry of the mutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		Description: "facts of the node: instance type, capacity type, architecture, versions, addresses",
		Arguments:   func() registration.Arguments { return &Arguments{} },
		New: func(a registration.Arguments) (mutators.Mutator, error) {
			args, err := registration.ArgumentsAs[*Arguments](a)
			if err != nil {
				return nil, err
			}
			return New(args)
		},
	}
}

// Arguments are the arguments of the mutator.
type Arguments struct {
	// Annotations are the node annotations to copy, each as "annotation" or "annotation=key".
	// The default key is the part after the slash. Keys must be unique and differ from those of
	// the mutator itself, such as os-image.
	Annotations []string `yaml:"annotations"`
}

// AddFlags implements registration.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Annotations, "node-info-annotations", a.Annotations,
		"Node annotations that the mutator node-info also copies, each as 'annotation' or 'annotation=key'.")
}

// Validate implements registration.Arguments.
func (a *Arguments) Validate() []registration.Problem {
	_, err := New(a)
	return registration.Invalid("annotations", err)
}
