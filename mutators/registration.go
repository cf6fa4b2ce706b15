// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutators

import "github.com/prebind/prebind/config/v1alpha1"

// Registration describes a mutator. Name, Description, and New are required.
type Registration struct {
	// Name is in kebab-case. Prefix it, such as acme-rack. The mutator that New returns must have the same name.
	Name string
	// Description is one line in the output of 'prebind plugins'.
	Description string
	// On means that '*' in --mutators includes the mutator.
	On bool
	// Claims requests the devices of the pod's ResourceClaims in the input. It requires a role that
	// grants get, list, and watch on ResourceClaims.
	Claims bool
	// Arguments returns arguments with their defaults. Nil means no arguments.
	Arguments func() v1alpha1.Arguments
	// New builds the mutator. Prebind calls it once, if the mutator is
	// on. The arguments are valid and do not change.
	New func(a v1alpha1.Arguments) (Mutator, error)
}
