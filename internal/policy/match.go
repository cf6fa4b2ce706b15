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

// differs returns the first selector that does not match, other than that of namespaces, or "". It does not allocate memory unless the Binding
// has labels.
func (m *matcher) differs(s *Subject) string {
	switch {
	case len(m.schedulers) > 0 && !slices.Contains(m.schedulers, s.Pod.Spec.SchedulerName):
		return "spec.matchConstraints.schedulerNames"
	case m.pods != nil && !m.pods.Matches(labelsOf(s)):
		return "spec.matchConstraints.podSelector"
	case m.nodes != nil && !m.nodes.Matches(labels.Set(s.Node.Labels)):
		return "spec.matchConstraints.nodeSelector"
	case !m.daemonSets && ofDaemonSet(s.Pod):
		return "spec.matchConstraints.includeDaemonSetPods"
	default:
		return ""
	}
}

// labelsOf returns the labels that the pod has after the bind, without those of mutators and plugins.
func labelsOf(s *Subject) labels.Set {
	if len(s.Binding.Labels) == 0 {
		return s.Pod.Labels
	}
	return labels.Merge(s.Pod.Labels, s.Binding.Labels)
}

// ofDaemonSet returns whether the pod belongs to a DaemonSet.
func ofDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}
