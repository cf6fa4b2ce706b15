// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package handlers

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// pull returns the pod that pulls the image, when it exists.
func pull(t *testing.T, image string) *corev1.Pod {
	t.Helper()
	found := &corev1.Pod{}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, pod := range pulls(t) {
			if pod.Spec.Containers[0].Image == image {
				*found = pod
				return
			}
		}
		assert.Fail(c, "no pod pulls "+image)
	}, patience, again)
	return found
}

func pulls(t *testing.T) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	labels := client.MatchingLabels{"app.kubernetes.io/name": "prefetch"}
	require.NoError(t, tasks.List(t.Context(), &pods, client.InNamespace(namespace), labels))
	return pods.Items
}

// kubelet sets the status of a pod as the kubelet does.
func kubelet(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase, status corev1.ContainerStatus) {
	t.Helper()
	status.Name, status.Image = pod.Spec.Containers[0].Name, pod.Spec.Containers[0].Image
	pod.Status.Phase, pod.Status.ContainerStatuses = phase, []corev1.ContainerStatus{status}
	require.NoError(t, tasks.Status().Update(t.Context(), pod))
}

func TestPrefetch(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{}
	require.NoError(t, tasks.Get(t.Context(), client.ObjectKey{Name: nodeName}, node))
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"shop/cached@sha256:1", "shop/cached:1"}}}
	require.NoError(t, tasks.Status().Update(t.Context(), node))
	startProgram(t, "prefetch")
	prefetch := func(name, image string) {
		create(t, name, "prefetch", map[string]v1alpha1.ParameterValue{"image": v1alpha1.ParameterValue(image)})
	}

	prefetch("cached", "shop/cached:1")
	ready := until(t, "cached", is(v1alpha1.TaskReady))
	assert.EqualValues(t, "hit", ready.Status.Annotations["cache"])
	assert.Equal(t, []string{"example.com/prefetch"}, ready.Finalizers)
	assert.Empty(t, pulls(t), "the node has the image")

	prefetch("empty", "")
	until(t, "empty", is(v1alpha1.TaskFailed))

	prefetch("web", "shop/web:1")
	prefetch("database", "shop/database:1")
	pull(t, "shop/database:1")
	web := pull(t, "shop/web:1")
	assert.Equal(t, nodeName, web.Spec.NodeName)
	kubelet(t, web, corev1.PodPending, corev1.ContainerStatus{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"},
	}})
	until(t, "web", func(task *v1alpha1.BindTask) bool {
		return task.Condition(v1alpha1.TaskReady).Message == "the pull of image shop/web:1: ImagePullBackOff"
	})
	// The image has no program with the name of the task.
	kubelet(t, web, corev1.PodFailed, corev1.ContainerStatus{ImageID: "sha256:2", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128},
	}})
	assert.EqualValues(t, "miss", until(t, "web", is(v1alpha1.TaskReady)).Status.Annotations["cache"])

	prefetch("third", "shop/third:1")
	kubelet(t, pull(t, "shop/third:1"), corev1.PodPending, corev1.ContainerStatus{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "InvalidImageName", Message: "couldn't parse image reference"},
	}})
	failed := until(t, "third", is(v1alpha1.TaskFailed)).Condition(v1alpha1.TaskFailed)
	assert.Equal(t, "InvalidImageName", failed.Reason)
	assert.Equal(t, "image shop/third:1: couldn't parse image reference", failed.Message)
	database := pull(t, "shop/database:1")
	database.Status.Reason, database.Status.Message = "OutOfpods", "the node has too many pods"
	kubelet(t, database, corev1.PodFailed, corev1.ContainerStatus{})
	assert.Equal(t, "the pull of image shop/database:1 failed: OutOfpods: the node has too many pods",
		until(t, "database", is(v1alpha1.TaskFailed)).Condition(v1alpha1.TaskFailed).Message)

	prefetch("crio", "shop/crio:1")
	kubelet(t, pull(t, "shop/crio:1"), corev1.PodPending, corev1.ContainerStatus{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError"},
	}})
	assert.EqualValues(t, "miss", until(t, "crio", is(v1alpha1.TaskReady)).Status.Annotations["cache"], "CRI-O cannot create the container after the pull")
	assert.False(t, slices.ContainsFunc(pulls(t), func(pod corev1.Pod) bool {
		return pod.Spec.Containers[0].Image == "shop/crio:1" && pod.DeletionTimestamp == nil
	}), "after the pull, the pod must not occupy the node")

	for _, name := range []string{"cached", "empty", "web", "database", "third", "crio"} {
		remove(t, name)
	}
	// The kubelet ends the pods that are not over.
	for _, pod := range pulls(t) {
		assert.NotNil(t, pod.DeletionTimestamp, "pod of image %s", pod.Spec.Containers[0].Image)
		require.NoError(t, tasks.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)))
	}
}
