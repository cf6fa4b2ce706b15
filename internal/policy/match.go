// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// matcher is the compiled form of matchConstraints. Nil selectors select everything.
type matcher struct {
	namespaces, pods, nodes labels.Selector
	schedulers              []string
	daemonSets              bool
}

// matches returns whether the selectors other than that of namespaces match. It does not allocate memory unless the Binding has labels.
func (m *matcher) matches(s *Subject) bool {
	switch {
	case len(m.schedulers) > 0 && !slices.Contains(m.schedulers, s.Pod.Spec.SchedulerName):
		return false
	case m.pods != nil && !m.pods.Matches(labelsOf(s)):
		return false
	case m.nodes != nil && !m.nodes.Matches(labels.Set(s.Node.Labels)):
		return false
	}
	return m.daemonSets || !runsOnEachNode(s.Pod)
}

// labelsOf returns the labels that the pod has after the bind, without those of mutators and plugins.
func labelsOf(s *Subject) labels.Set {
	if len(s.Binding.Labels) == 0 {
		return s.Pod.Labels
	}
	return labels.Merge(s.Pod.Labels, s.Binding.Labels)
}

// runsOnEachNode returns whether the pod belongs to a DaemonSet, or is the mirror of a static pod.
func runsOnEachNode(pod *corev1.Pod) bool {
	if _, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return true
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}
