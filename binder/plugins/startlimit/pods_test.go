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

func TestTrim(t *testing.T) {
	now := time.Unix(1000, 0)
	created := boundSince("a", now)
	created.Status.Conditions, created.CreationTimestamp.Time = nil, now
	critical := boundSince("a", now, refusedFor("OutOfcpu", now))
	critical.Spec.PriorityClassName = "system-node-critical"
	deleted := func(pod *corev1.Pod) { gen.Terminating()(&pod.ObjectMeta) }
	agent := func(pod *corev1.Pod) { gen.OwnedBy("DaemonSet", "agent", "1")(&pod.ObjectMeta) }
	init := func(pod *corev1.Pod) {
		waitsFor("ImagePullBackOff")(pod)
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = pod.Status.ContainerStatuses, nil
	}
	starting, refused := newPlugin().startingPods(), newPlugin().refusedPods()
	cases := map[string]struct {
		reason    string
		selection framework.Selection
		pod       *corev1.Pod
		want      bool
	}{
		"Starting": {reason: "the pod counts", selection: starting, pod: boundSince("a", now), want: true},
		"Running":  {reason: "the pod has started", selection: starting, pod: boundSince("a", now, inPhase(corev1.PodRunning))},
		"Failed":   {reason: "the pod does not start", selection: starting, pod: boundSince("a", now, inPhase(corev1.PodFailed))},
		"Deleted":  {reason: "the kubelet does not start it", selection: starting, pod: boundSince("a", now, deleted)},
		"Agent":    {reason: "the pod needs no slot", selection: starting, pod: boundSince("a", now, agent)},
		"Creating": {reason: "the kubelet prepares the container", selection: starting, pod: boundSince("a", now, waitsFor("ContainerCreating")), want: true},
		"Pulling":  {reason: "the kubelet pulls the image again", selection: starting, pod: boundSince("a", now, waitsFor("ErrImagePull")), want: true},
		"BackOff":  {reason: "the image does not exist", selection: starting, pod: boundSince("a", now, waitsFor("ImagePullBackOff"))},
		"Init":     {reason: "the image of an init container does not exist", selection: starting, pod: boundSince("a", now, init)},
		"NoConfig": {reason: "a ConfigMap does not exist", selection: starting, pod: boundSince("a", now, waitsFor("CreateContainerConfigError"))},
		"Busy":     {reason: "a busy container runtime does not answer", selection: starting, pod: boundSince("a", now, waitsFor("CreateContainerError")), want: true},
		"Unbound":  {reason: "a pod that was created with a node has no condition yet", selection: starting, pod: created, want: true},
		"Exempt":   {reason: "the circuit breaker does not apply to the pod", selection: refused, pod: critical},
	}
	for reason, want := range map[string]bool{
		"UnexpectedAdmissionError": true, "OutOfcpu": true, "OutOfpods": true, "OutOfnvidia.com/gpu": true, "NodeAffinity": true,
		"TopologyAffinityError": true, "NodeShutdown": true, "VolumeAttachmentLimitExceeded": true,
		"AppArmor": true, "SupplementalGroupsPolicyNotSupported": true, "PodFeatureUnsupported": true, "PodLevelResourcesNotSupported": true,
		"": false, "Evicted": false, "SysctlForbidden": false, "Terminated": false, "DeadlineExceeded": false, "Preempting": false, "Error": false,
	} {
		row := cases["Exempt"]
		row.reason, row.pod, row.want = "the kubelet refuses pods for some reasons", boundSince("a", now, refusedFor(reason, now)), want
		cases["Refused"+reason] = row
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
