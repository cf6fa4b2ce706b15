// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 defines the arguments of mutators and plugins. Users set them in the configuration file or with flags.
package v1alpha1

import (
	"fmt"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Domain is the domain of all annotations and labels. Their keys are <name>.prebind.dev/<key>.
const Domain = "prebind.dev"

// Arguments are the arguments of one mutator or plugin. The type is a pointer to a struct whose
// fields have json tags in camelCase. Users set the fields below arguments.<name> in the
// configuration file, or with flags.
type Arguments interface {
	// AddFlags adds the flags, each bound to its field: <name>-<field in kebab-case>.
	AddFlags(fs *pflag.FlagSet)
	// Validate returns an error for each invalid field. Its fields are children of the path. Prebind
	// calls it before it builds the mutator or plugin, and also if the mutator or plugin is switched off.
	Validate(path *field.Path) field.ErrorList
}

// Waiter is implemented by arguments with a wait time. The wait must not be longer than
// budgets.maxPrebindTimeout.
type Waiter interface {
	// LongestWait returns the maximum wait and its field.
	LongestWait() (name string, wait metav1.Duration)
}

// ArgumentsAs returns the arguments as a T. New receives the type that the registration's own
// Arguments function returns, so an error is a bug in the program.
func ArgumentsAs[T Arguments](a Arguments) (T, error) {
	typed, ok := a.(T)
	if !ok {
		return typed, fmt.Errorf("arguments must be a %T, got a %T", typed, a)
	}
	return typed, nil
}

// Positive returns an error unless the duration is positive.
func Positive(path *field.Path, d metav1.Duration) field.ErrorList {
	if d.Duration > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, d, "must be positive")}
}

// Between returns an error unless the value is at least low and at most high.
func Between(path *field.Path, value, low, high int) field.ErrorList {
	if low <= value && value <= high {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be between %d and %d", low, high))}
}
