// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutators holds the contract of the mutators and the chain that runs
// them. A mutator tells a pod, by annotations and labels that reach it atomically
// with its node, what it could not know before it was bound.
package mutators

import (
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

// Mutator computes annotations and labels from a pod, its node and the Binding.
//
// It is a pure function: no I/O, no clock, the same output for the same input.
// It is called for every Binding, repeatedly and concurrently, dry runs
// included.
type Mutator interface {
	// Name is the mutator's name in kebab-case; what it writes is
	// <name>.<domain>/<key>. It never changes.
	Name() string
	// Mutate returns what to add. It never changes its input. An error leaves the
	// mutator out of this bind, or refuses the bind where the operator requires
	// the mutator.
	Mutate(in Input) (Output, error)
}

// Input is what a mutator may look at. All of it may be shared with a cache and
// with other mutators.
type Input struct {
	Pod *corev1.Pod
	// Node is the Binding's target, without images and managed fields.
	Node *corev1.Node
	// Binding is what the scheduler posted; no mutator sees what another adds.
	Binding *corev1.Binding
	// User posted the Binding.
	User authenticationv1.UserInfo
	// Bind tells how the bind has gone so far.
	Bind Bind
	// Devices are those that are the pod's on this node: by the PreBind plugins
	// and, for the mutator that asks for them, by its ResourceClaims.
	Devices []Device
	// DevicesErr is why Devices may lack those of ResourceClaims, or nil.
	DevicesErr error
}

// Bind is the course of a bind, as the replica saw it that answers. It is
// complete when the bind is allowed; before that it is a look ahead.
type Bind struct {
	// Attempt is the one that prepared the bind; empty where no plugin had
	// anything to do.
	Attempt string
	// Calls is how often the Binding was posted, this call included.
	Calls int
	// Waited is the time since the first of these calls.
	Waited time.Duration
	// At is now.
	At time.Time
}

// Device is one device, or a share of one, that a pod gets.
type Device struct {
	// Request is what the pod knows it by: the name that its requester gave.
	Request string
	// Driver and Pool are those of a ResourceClaim's allocation, else empty.
	Driver, Pool string
	// Name is the device's own.
	Name string
	// Share is the part of the device, such as 0.5; empty for all of it.
	Share string
}

// Output is what a mutator adds.
type Output struct {
	// Annotations by short key: the part behind the slash. The chain puts the
	// mutator's own prefix before it.
	Annotations map[string]string
	// Labels of the pod, in the same form. A label that the pod or the Binding has
	// with another value is left as it is, unless ReplaceLabels says otherwise.
	Labels map[string]string
	// Changing are keys of Annotations whose values differ from call to call. Another
	// value on the Binding is then no conflict: it is the mutator's own, from the
	// call before, when the API server calls again for the same request.
	Changing []string
	// ReplaceLabels lets the mutator's labels replace others' values.
	ReplaceLabels bool
	// Missing names, in plain words, what was to be added and could not, as in
	// "the node has no label example.com/rack". That is fine, unless the operator
	// requires the mutator: then the bind is refused.
	Missing []string
}
