// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutators holds the contract of the mutators and the chain that runs
// them. A mutator tells a pod, by annotations that reach it atomically with its
// node, what it could not know before it was bound.
package mutators

import corev1 "k8s.io/api/core/v1"

// Mutator computes annotations from a pod, its node and the Binding.
//
// It is a pure function: no I/O, no clock, the same output for the same input.
// It is called for every Binding, repeatedly and concurrently, dry runs
// included.
type Mutator interface {
	// Name is the mutator's name in kebab-case; its annotations are
	// <name>.<domain>/<key>. It never changes.
	Name() string
	// Mutate returns what to add. It never changes its input.
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
}

// Output is what a mutator adds.
type Output struct {
	// Annotations by short key: the part behind the slash. The chain puts the
	// mutator's own prefix before it.
	Annotations map[string]string
}
