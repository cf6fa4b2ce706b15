// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package deviceinfo

import (
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Registration returns the registry entry of the mutator.
func Registration() mutators.Registration {
	return mutators.Registration{
		Name:        Name,
		Description: "the pod's devices of the plugin device and of ResourceClaims",
		Claims:      true,
		New:         func(v1alpha1.Arguments) (mutators.Mutator, error) { return New(), nil },
	}
}
