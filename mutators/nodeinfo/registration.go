// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeinfo

import (
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Registration returns the registry entry of the mutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		Description: "facts of the node: instance type, capacity type, architecture, versions, addresses",
		Arguments:   func() v1alpha1.Arguments { return &Arguments{} },
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
	// Annotations are the node annotations to copy, each as "annotation" or "annotation=key".
	// The default key is the part after the slash. Keys must be unique and differ from those of
	// the mutator itself, such as os-image.
	Annotations []string `json:"annotations"`
}

// AddFlags implements v1alpha1.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&a.Annotations, "node-info-annotations", a.Annotations,
		"Node annotations that the mutator node-info also copies, each as 'annotation' or 'annotation=key'.")
}

// Validate implements v1alpha1.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	if _, err := New(a); err != nil {
		return field.ErrorList{field.Invalid(path.Child("annotations"), strings.Join(a.Annotations, ","), err.Error())}
	}
	return nil
}
