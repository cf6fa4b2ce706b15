// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
)

// TestPodStages_Match checks the stage and the delay of kwok's own engine for a pod.
func TestPodStages_Match(t *testing.T) {
	const delay = 2 * time.Second
	deleted := metav1.Now()
	tests := map[string]struct {
		reason string
		pod    corev1.Pod
		stage  string
		delay  time.Duration
	}{
		"bound": {
			reason: "a bound pod becomes Running and Ready after the delay of the flag",
			pod:    corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}},
			stage:  "pod-ready", delay: delay,
		},
		"annotated": {
			reason: "the annotation of a pod overrides the flag",
			pod: corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{delayAnnotation: "1h"}},
				Status:     corev1.PodStatus{Phase: corev1.PodPending},
			},
			stage: "pod-ready", delay: time.Hour,
		},
		"running": {
			reason: "a running pod stays as it is, so that tests can change its conditions",
			pod:    corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}},
		},
		"failed": {
			reason: "a pod that a test marks as failed does not start again",
			pod:    corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}},
		},
		"deleted": {
			reason: "a deleted pod disappears immediately, also while it starts",
			pod: corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deleted},
				Status:     corev1.PodStatus{Phase: corev1.PodPending},
			},
			stage: "pod-delete",
		},
	}
	stages, err := podStages(delay)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := lifecycle.NewLifecycle(stages)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			event := &lifecycle.Event{Labels: tc.pod.Labels, Annotations: tc.pod.Annotations, Data: &tc.pod}
			stage, err := engine.Match(t.Context(), event)
			if err != nil {
				t.Fatal(err)
			}
			if stage == nil {
				if tc.stage != "" {
					t.Fatalf("no stage, want %s: %s", tc.stage, tc.reason)
				}
				return
			}
			got, _, err := stage.Delay(t.Context(), event, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if stage.Name() != tc.stage || got != tc.delay {
				t.Errorf("stage %s after %s, want %s after %s: %s", stage.Name(), got, tc.stage, tc.delay, tc.reason)
			}
		})
	}
}
