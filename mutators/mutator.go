// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutators holds the contract of the mutators and the chain that runs
// them. A mutator adds annotations and labels to the Binding. The API server writes them to the
// pod together with the node.
package mutators

import (
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

// Mutator computes annotations and labels from a pod, its node and the Binding.
//
// It is a pure function: no I/O, no clock, and the same output for the same input. It is called
// repeatedly and concurrently, for every Binding, dry runs included.
type Mutator interface {
	// Name is the mutator's name in kebab-case. It prefixes the keys: <name>.prebind.dev/<key>.
	// It never changes.
	Name() string
	// Mutate returns what to add. It does not change its input. After an error, the bind
	// continues without the mutator, or is rejected if the operator requires the mutator.
	Mutate(in Input) (Output, error)
}

// Input is the input of a mutator. It is shared with the cache and other mutators.
type Input struct {
	Pod *corev1.Pod
	// Node is the Binding's target, without images and managed fields.
	Node *corev1.Node
	// Binding is what the scheduler posted, without the output of other mutators.
	Binding *corev1.Binding
	// User posted the Binding.
	User authenticationv1.UserInfo
	// Bind describes the bind so far.
	Bind Bind
	// Devices are the pod's devices on this node: those of PreBind plugins and, if
	// Registration.Claims is set, those of ResourceClaims.
	Devices []Device
	// DevicesErr is the error because of which Devices lacks those of ResourceClaims, or nil.
	DevicesErr error
}

// Bind describes a bind, as observed by the replica that answers. It is complete when the bind
// is allowed. Before that, it is a preview.
type Bind struct {
	// Attempt is the attempt that prepared the bind. It is empty if no plugin had anything to
	// do.
	Attempt string
	// Calls is the number of calls for the Binding, including this one.
	Calls int
	// Waited is the time since the first of these calls.
	Waited time.Duration
	// At is the current time.
	At time.Time
}

// Device is one device, or a share of one, that a pod gets.
type Device struct {
	// Request is the name that the requester gave to the device.
	Request string
	// Driver and Pool are set for devices of ResourceClaims only.
	Driver, Pool string
	// Name of the device.
	Name string
	// Share is the part of the device, such as 0.5. Empty means the whole device.
	Share string
}

// Output is the output of a mutator.
type Output struct {
	// Annotations by short key. The chain adds the mutator's prefix and a slash.
	Annotations map[string]string
	// Labels of the pod by short key. They need Kubernetes 1.35 or later. A label that the pod
	// or the Binding has with another value is kept, unless ReplaceLabels is set.
	Labels map[string]string
	// Changing are keys of Annotations whose values differ from call to call. Another value on
	// the Binding is not a conflict, because it can be from an earlier call for the same
	// request.
	Changing []string
	// ReplaceLabels means that Labels replace other values.
	ReplaceLabels bool
	// Missing lists what the mutator could not add, such as "the node has no label
	// example.com/rack". If the operator requires the mutator, the bind is rejected.
	Missing []string
}
