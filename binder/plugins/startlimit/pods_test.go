// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestIsStarting(t *testing.T) {
	deleted := func(pod *corev1.Pod) { gen.Terminating()(&pod.ObjectMeta) }
	agent := func(pod *corev1.Pod) { gen.OwnedBy("DaemonSet", "agent", "1")(&pod.ObjectMeta) }
	init := func(pod *corev1.Pod) {
		waitsFor("ImagePullBackOff")(pod)
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = pod.Status.ContainerStatuses, nil
	}
	cases := map[string]struct {
		reason string
		change func(*corev1.Pod)
		want   bool
	}{
		"Pending":  {reason: "the pod starts", change: func(*corev1.Pod) {}, want: true},
		"Running":  {reason: "the pod has started", change: inPhase(corev1.PodRunning)},
		"Failed":   {reason: "the pod does not start", change: inPhase(corev1.PodFailed)},
		"Deleted":  {reason: "the kubelet does not start it", change: deleted},
		"Agent":    {reason: "the pod needs no slot", change: agent},
		"Creating": {reason: "the kubelet prepares the container", change: waitsFor("ContainerCreating"), want: true},
		"Pulling":  {reason: "the kubelet pulls the image again", change: waitsFor("ErrImagePull"), want: true},
		"BackOff":  {reason: "the image does not exist", change: waitsFor("ImagePullBackOff")},
		"Init":     {reason: "the image of an init container does not exist", change: init},
		"NoConfig": {reason: "a ConfigMap does not exist", change: waitsFor("CreateContainerConfigError")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, isStarting(bound("a", tc.change)), tc.reason) })
	}
}

func TestIsRefused(t *testing.T) {
	for reason, want := range map[string]bool{
		"UnexpectedAdmissionError": true, "OutOfcpu": true, "OutOfpods": true, "OutOfnvidia.com/gpu": true, "NodeAffinity": true,
		"TopologyAffinityError": true, "NodeShutdown": true, "VolumeAttachmentLimitExceeded": true,
		"": false, "Evicted": false, "SysctlForbidden": false, "Terminated": false, "DeadlineExceeded": false, "Preempting": false,
	} {
		assert.Equal(t, want, isRefused(bound("a", refusedFor(reason, time.Unix(1000, 0)))), reason)
	}
}

func TestTrim(t *testing.T) {
	now := time.Unix(1000, 0)
	created := boundSince("a", now)
	created.Status.Conditions, created.CreationTimestamp.Time = nil, now
	critical := boundSince("a", now, refusedFor("OutOfcpu", now))
	critical.Spec.PriorityClassName = "system-node-critical"
	p := newPlugin()
	cases := map[string]struct {
		reason    string
		selection framework.Selection
		pod       *corev1.Pod
		want      bool
	}{
		"Starting": {reason: "the pod counts", selection: p.startingPods(), pod: boundSince("a", now), want: true},
		"Unbound":  {reason: "a pod that was created with a node has no condition yet", selection: p.startingPods(), pod: created, want: true},
		"Stuck":    {reason: "the pod does not count", selection: p.startingPods(), pod: boundSince("a", now, waitsFor("ImagePullBackOff"))},
		"Refused":  {reason: "the kubelet rejected the pod", selection: p.refusedPods(), pod: boundSince("a", now, refusedFor("OutOfcpu", now)), want: true},
		"Crashed":  {reason: "the pod ran", selection: p.refusedPods(), pod: boundSince("a", now, refusedFor("Error", now))},
		"Exempt":   {reason: "the circuit breaker does not apply to the pod", selection: p.refusedPods(), pod: critical},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			trimmed, err := tc.selection.Transform(tc.pod)
			require.NoError(t, err)
			again, err := tc.selection.Transform(trimmed)
			require.NoError(t, err)
			assert.Equal(t, trimmed, again, "an informer can transform an object twice")
			got := podOf(trimmed)
			require.Equal(t, tc.want, got != nil, tc.reason)
			if got == nil {
				return
			}
			assert.Equal(t, tc.pod.Name, got.Name)
			assert.Equal(t, tc.pod.UID, got.UID)
			assert.Equal(t, nodeA, got.Spec.NodeName)
			if tc.pod.Status.Phase == corev1.PodFailed {
				assert.Equal(t, tc.pod.Status.Reason, got.Status.Reason)
				assert.True(t, now.Equal(got.Status.StartTime.Time), "the time is kept")
			}
		})
	}
}
