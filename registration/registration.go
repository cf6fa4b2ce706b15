// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registration contains the common parts of the registrations of mutators and PreBind
// plugins: arguments and their validation. Plugins use it through binder/framework.
package registration

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Domain is the domain of all annotations and labels. Their keys are <name>.prebind.dev/<key>.
const Domain = "prebind.dev"

// Arguments are the arguments of one mutator or plugin. The type is a pointer to a struct whose
// fields have yaml tags in camelCase. Users set the fields below arguments.<name> in the
// configuration file, or with flags.
type Arguments interface {
	// AddFlags adds the flags, each bound to its field: <name>-<field in kebab-case>.
	AddFlags(fs *pflag.FlagSet)
	// Validate returns a problem for each invalid field. Prebind calls it before it builds the
	// mutator or plugin, and also if the mutator or plugin is switched off.
	Validate() []Problem
}

// Problem is the reason why a field is invalid.
type Problem struct {
	// Field is the yaml name.
	Field string
	Err   error
}

// Invalid returns the problem of a field, or nil if the error is nil.
func Invalid(field string, err error) []Problem {
	if err == nil {
		return nil
	}
	return []Problem{{Field: field, Err: err}}
}

// Positive returns a problem unless the duration is positive.
func Positive(field string, d time.Duration) []Problem {
	if d > 0 {
		return nil
	}
	return []Problem{{Field: field, Err: fmt.Errorf("must be positive, got %s", d)}}
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
