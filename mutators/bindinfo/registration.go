// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindinfo

import (
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/registration"
)

// Registration returns the mutator's entry in the registry.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		Description: "the bind: user, scheduler, time, number of calls, wait",
		New:         func(registration.Arguments) (mutators.Mutator, error) { return New(), nil },
	}
}
