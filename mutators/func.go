// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutators

import (
	corev1 "k8s.io/api/core/v1"
)

// Func returns a Mutator with the name. The function returns annotations by short key, which is the
// part after the slash. It must be pure and must not change its arguments.
func Func(name string, annotations func(pod *corev1.Pod, node *corev1.Node) map[string]string) Mutator {
	return function{name: name, annotations: annotations}
}

type function struct {
	name        string
	annotations func(pod *corev1.Pod, node *corev1.Node) map[string]string
}

// Name implements Mutator.
func (f function) Name() string { return f.name }

// Mutate implements Mutator.
func (f function) Mutate(in Input) (Output, error) {
	return Output{Annotations: f.annotations(in.Pod, in.Node)}, nil
}
