// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutators defines the interface of mutators. A mutator adds annotations and labels to the Binding. The API server writes
// them to the pod together with the node.
package mutators

import (
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

// Mutator computes annotations and labels from a pod, its node and the Binding.
//
// It must be a pure function: it performs no I/O, reads no clock, and returns the same output for the
// same input. Prebind calls it repeatedly and concurrently, for every Binding, including dry runs.
type Mutator interface {
	// Name is the mutator's name in kebab-case. It prefixes the keys: <name>.prebind.dev/<key>.
	// It must not change.
	Name() string
	// Mutate returns the annotations and labels to add. It must not change its input. After an error,
	// the bind continues without the mutator. If the operator requires the mutator, Prebind rejects
	// the bind.
	Mutate(in Input) (Output, error)
}

// Input is the input of a mutator. The cache and other mutators share it.
type Input struct {
	Pod *corev1.Pod
	// Node is the Binding's target, without images and managed fields.
	Node *corev1.Node
	// Binding is the Binding that the scheduler posted, without the output of other mutators.
	Binding *corev1.Binding
	// User is the user that posted the Binding.
	User authenticationv1.UserInfo
	// Bind describes the state of the bind.
	Bind Bind
	// Devices are the pod's devices on this node: those of PreBind plugins and, if
	// Registration.Claims is set, those of ResourceClaims.
	Devices []Device
	// DevicesErr is the error of reading the devices of ResourceClaims, or nil.
	DevicesErr error
}

// Bind describes a bind as observed by the replica that answers. It is complete when Prebind
// allows the bind. Before that, it is a preview.
type Bind struct {
	// Attempt is the attempt that prepared the bind. It is empty if no plugin had work.
	Attempt string
	// Calls is the number of calls for the Binding, including this one.
	Calls int
	// Waited is the time since the first of these calls.
	Waited time.Duration
	// At is the current time.
	At time.Time
}

// Device is a device, or a share of a device, that is allocated to a pod.
type Device struct {
	// Request is the name of the device in the request: a valid part of an annotation key.
	Request string
	// Driver and Pool are set only for devices of ResourceClaims.
	Driver, Pool string
	// Name of the device.
	Name string
	// Share is the part of the device: such as 0.5, or of a ResourceClaim, the share ID. Empty means the whole device.
	Share string
}

// Output is the output of a mutator.
type Output struct {
	// Annotations by short key. The chain adds the mutator's prefix and a slash.
	Annotations map[string]string
	// Labels of the pod by short key. They require Kubernetes 1.35 or later, or 1.33 and 1.34 with the
	// feature gate PodTopologyLabelsAdmission. If the pod or the Binding has a different value for a
	// label, Prebind keeps that value unless ReplaceLabels is set.
	Labels map[string]string
	// Changing lists keys of Annotations whose values differ from call to call. A different value
	// on the Binding is not a conflict, because it can come from an earlier call for the same
	// request.
	Changing []string
	// ReplaceLabels means that Labels replace existing values.
	ReplaceLabels bool
	// Missing lists the values that the mutator could not add, such as "the node has no label
	// example.com/rack". If the operator requires the mutator, Prebind rejects the bind.
	Missing []string
}
