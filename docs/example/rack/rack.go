// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rack is an example of a mutator: it copies an annotation of the node to the pod, as rack.prebind.dev/name.
package rack

import (
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Name of the mutator.
const Name = "rack"

// Registration returns the entry for app.WithMutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name: Name, Description: "the rack of the node",
		Arguments: func() v1alpha1.Arguments { return &arguments{Annotation: "example.com/rack"} },
		New: func(a v1alpha1.Arguments) (mutators.Mutator, error) {
			args, err := v1alpha1.ArgumentsAs[*arguments](a)
			return mutator{args}, err
		},
	}
}

// arguments are arguments.rack in the configuration file, and flags.
type arguments struct {
	Annotation string `json:"annotation"`
}

// AddFlags implements v1alpha1.Arguments.
func (a *arguments) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.Annotation, "rack-annotation", a.Annotation, "Annotation of the node with its rack.")
}

// Validate implements v1alpha1.Arguments.
func (a *arguments) Validate(path *field.Path) (all field.ErrorList) {
	for _, problem := range validation.IsQualifiedName(a.Annotation) {
		all = append(all, field.Invalid(path.Child("annotation"), a.Annotation, problem))
	}
	return all
}

type mutator struct{ *arguments }

// Name implements mutators.Mutator.
func (mutator) Name() string { return Name }

// Mutate implements mutators.Mutator.
func (m mutator) Mutate(in mutators.Input) (mutators.Output, error) {
	rack, ok := in.Node.Annotations[m.Annotation]
	if !ok {
		return mutators.Output{Missing: []string{"the node has no annotation " + m.Annotation}}, nil
	}
	return mutators.Output{Annotations: map[string]string{"name": rack}}, nil
}
