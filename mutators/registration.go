// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutators

import "github.com/prebind/prebind/registration"

// Registration describes a mutator, whether it is part of Prebind or not. Name,
// Description and New are required.
type Registration struct {
	// Name in kebab-case: that of the mutator that New returns.
	Name string
	// Description is a line for 'prebind plugins'.
	Description string
	// On says that '*' of --mutators includes the mutator.
	On bool
	// Claims requests the devices of the pod's ResourceClaims in the input. Prebind needs
	// the permission to get, list and watch ResourceClaims for it.
	Claims bool
	// Arguments returns new ones with their defaults; nil if there are none.
	Arguments func() registration.Arguments
	// Permissions returns what Prebind needs while the mutator is on; nil for nothing.
	Permissions func(a registration.Arguments) (registration.Permissions, error)
	// New is called whenever a configuration that has the mutator on comes into force. The
	// arguments are valid, and never changed.
	New func(a registration.Arguments) (Mutator, error)
}
