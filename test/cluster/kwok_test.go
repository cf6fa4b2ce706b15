// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
)

// TestKwok_ActsAsKubelet checks the life of pods that kube-scheduler binds while kwok runs.
func TestKwok_ActsAsKubelet(t *testing.T) {
	c := clustertest.Start(t, cluster.Options{
		Kwok: true, WithoutProvisioner: true,
		ExtraArgs: map[string][]string{cluster.Kwok: {"--start-delay=1s"}},
	})
	client := clientFor(t, c.Config())
	newNodes(t, client, cluster.Node("living"))
	namespace := newNamespace(t, client)

	began := time.Now()
	ordinary := runningSoon(t, client, namespace, newPod(t, client, namespace, cluster.DefaultScheduler, ""))
	assert.GreaterOrEqual(t, time.Since(began), time.Second, "--start-delay is the time that a pod is Pending")
	assert.NotEmpty(t, ordinary.Status.PodIP)

	slow := startsAfter(t, client, namespace, "1h")
	quick := runningSoon(t, client, namespace, startsAfter(t, client, namespace, "10ms"))
	pending := untilBound(t, client, namespace, slow)
	assert.Equal(t, corev1.PodPending, pending.Status.Phase, "the annotation of a pod overrides --start-delay")

	t.Run("a condition that a test sets stays", func(t *testing.T) {
		quick.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		_, err := client.CoreV1().Pods(namespace).UpdateStatus(t.Context(), quick, metav1.UpdateOptions{})
		require.NoError(t, err)
		runningSoon(t, client, namespace, startsAfter(t, client, namespace, "10ms")) // kwok has seen the change.
		now, err := client.CoreV1().Pods(namespace).Get(t.Context(), quick.Name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.False(t, isReady(now))
	})

	t.Run("a deleted pod disappears", func(t *testing.T) {
		require.NoError(t, client.CoreV1().Pods(namespace).Delete(t.Context(), slow, metav1.DeleteOptions{}))
		until(t, "the pod to disappear", func(ctx context.Context) (bool, error) {
			_, err := client.CoreV1().Pods(namespace).Get(ctx, slow, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		}, func(gone bool) bool { return gone })
	})

	t.Run("without kwok, pods stay Pending", func(t *testing.T) {
		require.NoError(t, c.Process(cluster.Kwok).Stop())
		name := startsAfter(t, client, namespace, "0s")
		assert.Equal(t, corev1.PodPending, untilBound(t, client, namespace, name).Status.Phase)
		require.NoError(t, c.Process(cluster.Kwok).Start())
		runningSoon(t, client, namespace, name)
	})

	t.Run("a node that a test makes unready stays unready", func(t *testing.T) {
		const unready = `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`
		_, err := client.CoreV1().Nodes().Patch(t.Context(), "living", types.StrategicMergePatchType, []byte(unready), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		pod, err := client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "later"},
			Spec:       corev1.PodSpec{NodeName: "living", Containers: []corev1.Container{{Name: "main", Image: "example.com/none"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		runningSoon(t, client, namespace, pod.Name) // kwok has seen the node.
		node, err := client.CoreV1().Nodes().Get(t.Context(), "living", metav1.GetOptions{})
		require.NoError(t, err)
		ready := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		require.GreaterOrEqual(t, ready, 0)
		assert.Equal(t, corev1.ConditionFalse, node.Status.Conditions[ready].Status)
		assert.Empty(t, node.Status.NodeInfo.KubeletVersion)
	})
}

// startsAfter makes a pod with its own delay.
func startsAfter(t *testing.T, client kubernetes.Interface, namespace, delay string) string {
	t.Helper()
	pod, err := client.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Annotations: map[string]string{cluster.StartDelay: delay}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/none"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return pod.Name
}

// runningSoon returns the pod as soon as it is Running and Ready.
func runningSoon(t *testing.T, client kubernetes.Interface, namespace, name string) *corev1.Pod {
	t.Helper()
	return until(t, "pod "+name+" to be Running", func(ctx context.Context) (*corev1.Pod, error) {
		return client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	}, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning && isReady(pod) })
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
