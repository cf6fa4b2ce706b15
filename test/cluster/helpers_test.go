// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/test/cluster"
)

// patience bounds every wait in these tests.
const patience = cluster.Patience

const selectedNode = "volume.kubernetes.io/selected-node"

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// until returns the object as soon as it is as wanted.
func until[T any](t *testing.T, what string, get func(context.Context) (T, error), wanted func(T) bool) T {
	t.Helper()
	var last T
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var err error
		last, err = get(ctx)
		return err == nil && wanted(last), nil
	})
	require.NoError(t, err, "wait for %s; last seen: %+v", what, last)
	return last
}

// newNamespace makes a namespace that goes when the test ends.
func newNamespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), ns.Name, metav1.DeleteOptions{})
	})
	until(t, "the default service account", func(ctx context.Context) (*corev1.ServiceAccount, error) {
		return client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
	}, func(*corev1.ServiceAccount) bool { return true })
	return ns.Name
}

// newNodes makes nodes that go when the test ends, so that no other test's pods
// land on them.
func newNodes(t *testing.T, client kubernetes.Interface, nodes ...*corev1.Node) {
	t.Helper()
	require.NoError(t, cluster.CreateNodes(t.Context(), client, nodes...))
	t.Cleanup(func() {
		for _, node := range nodes {
			_ = client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{})
		}
	})
}

// newClaim makes a WaitForFirstConsumer class with the parameters, and a claim of it.
func newClaim(t *testing.T, client kubernetes.Interface, namespace string, parameters map[string]string) string {
	t.Helper()
	return newClaimOf(t, client, namespace, cluster.ProvisionerName, parameters)
}

// newClaimOf is newClaim for another provisioner.
func newClaimOf(t *testing.T, client kubernetes.Interface, namespace, provisioner string, parameters map[string]string) string {
	t.Helper()
	class, err := client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{GenerateName: "test-"},
		Provisioner:       provisioner,
		Parameters:        parameters,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	claim, err := client.CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "claim-"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class.Name,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return claim.Name
}

// newPod makes a pod for the scheduler, with the claim if one is named.
func newPod(t *testing.T, client kubernetes.Interface, namespace, scheduler, claim string) string {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
		Spec: corev1.PodSpec{
			SchedulerName: scheduler,
			Containers:    []corev1.Container{{Name: "main", Image: "example.com/none"}},
		},
	}
	if claim != "" {
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
	}
	created, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	return created.Name
}

func untilBound(t *testing.T, client kubernetes.Interface, namespace, name string) *corev1.Pod {
	t.Helper()
	return until(t, "pod "+name+" to be bound", func(ctx context.Context) (*corev1.Pod, error) {
		return client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	}, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
}

func getClaim(t *testing.T, client kubernetes.Interface, namespace, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := client.CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return claim
}
