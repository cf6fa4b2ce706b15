// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindinfo

import (
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Registration returns the registry entry of the mutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		Description: "the bind: user, scheduler, time, number of calls, wait",
		New:         func(v1alpha1.Arguments) (mutators.Mutator, error) { return New(), nil },
	}
}
