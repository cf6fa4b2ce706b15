// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

// loner is a replica that is not part of the Service, with a separate kubeconfig.
type loner struct {
	*cluster.Process
	webhook, health string
}

// loner starts a live replica, which may not be ready. Its only plugin writes no marks, so it does not affect the attempts of other replicas.
func (b *bench) loner(kubeconfig string, args ...string) *loner {
	b.t.Helper()
	l := &loner{}
	for _, address := range []*string{&l.webhook, &l.health} {
		var err error
		*address, err = b.cluster.ReserveAddress(b.t.Context())
		require.NoError(b.t, err)
	}
	l.Process = cluster.NewProcess(cluster.ProcessOptions{
		Name: "loner-" + b.ns,
		Path: b.prebind.Binary(),
		Args: append([]string{
			"serve", "--kubeconfig=" + kubeconfig, "--cert-dir=" + b.prebind.CertDir(), "--webhook-bind-address=" + l.webhook,
			"--health-probe-bind-address=" + l.health, "--metrics-bind-address=0", "--prebind-plugins=volumebinding", "--shutdown-delay=0s",
		}, args...),
		LogFile: filepath.Join(b.t.TempDir(), "log"),
		Health: func(ctx context.Context) error {
			body, code, err := install.Fetch(ctx, "http://"+l.health+"/healthz")
			if err == nil && code != http.StatusOK {
				err = errors.New(body)
			}
			return err
		},
	})
	b.t.Cleanup(func() { assert.NoError(b.t, l.Kill()) })
	require.NoError(b.t, l.Run(b.t.Context()))
	return l
}

// untilReadyz waits until the response of the probe has the code and contains the words.
func (b *bench) untilReadyz(l *loner, code int, words ...string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		body, got, err := install.Fetch(b.t.Context(), "http://"+l.health+"/readyz")
		require.NoError(c, err)
		assert.Equal(c, code, got, "%s", body)
		for _, w := range words {
			assert.Contains(c, body, w)
		}
	}, 2*patience, again) // A watch that the API server has forbidden is repeated after up to a minute.
}

// narrow creates a service account with the shipped core permissions, and a separate ClusterRoleBinding for the permissions of
// volumebinding. It returns the name of that binding.
func (b *bench) narrow() (kubeconfig, binding string) {
	b.t.Helper()
	ctx := b.t.Context()
	b.kubectl("create", "serviceaccount", "narrow", "--namespace="+b.ns)
	for _, name := range []string{"prebind", "prebind-volumebinding"} {
		role, err := b.client.RbacV1().Roles(install.Namespace).Get(ctx, name, metav1.GetOptions{})
		require.NoError(b.t, err)
		role.ObjectMeta = metav1.ObjectMeta{Name: name}
		_, err = b.client.RbacV1().Roles(b.ns).Create(ctx, role, metav1.CreateOptions{})
		require.NoError(b.t, err)
		account := "--serviceaccount=" + b.ns + ":narrow"
		b.kubectl("create", "rolebinding", name, "--namespace="+b.ns, "--role="+name, account)
		binding = name + "-" + b.ns
		b.kubectl("create", "clusterrolebinding", binding, "--clusterrole="+name, account)
		b.t.Cleanup(func() {
			err := b.client.RbacV1().ClusterRoleBindings().Delete(context.WithoutCancel(ctx), name+"-"+b.ns, metav1.DeleteOptions{})
			assert.True(b.t, err == nil || apierrors.IsNotFound(err), "%v", err)
		})
	}
	kubeconfig, err := b.cluster.ServiceAccountKubeconfig(ctx, b.ns, "narrow")
	require.NoError(b.t, err)
	return kubeconfig, binding
}

// A replica that starts without a permission is not ready and names it. It becomes ready when the permission is granted. A replica
// that loses a permission logs it and stays ready.
func TestMissingPermission(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	kubeconfig, binding := b.narrow()
	proxy, err := b.cluster.NewAPIProxy(kubeconfig, t.TempDir())
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	bindings := b.client.RbacV1().ClusterRoleBindings()
	granted, err := bindings.Get(t.Context(), binding, metav1.GetOptions{})
	require.NoError(t, err)
	granted.ResourceVersion = ""
	require.NoError(t, bindings.Delete(t.Context(), binding, metav1.DeleteOptions{}))

	l := b.loner(proxy.Kubeconfig, "--namespace="+b.ns)
	b.untilReadyz(l, http.StatusServiceUnavailable,
		"PreBind plugin volumebinding: the service account lacks a permission", "cannot list resource", "apply its role")
	logged := func() int {
		log, err := os.ReadFile(l.LogFile())
		require.NoError(t, err)
		return strings.Count(string(log), `"A permission is missing" err="PreBind plugin volumebinding: `)
	}
	assert.Positive(t, logged())
	_, err = bindings.Create(t.Context(), granted, metav1.CreateOptions{})
	require.NoError(t, err)
	b.untilReadyz(l, http.StatusOK, "ok")

	before := logged()
	require.NoError(t, bindings.Delete(t.Context(), binding, metav1.DeleteOptions{}))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		proxy.Disconnect() // The API server may still have the old role.
		assert.Greater(c, logged(), before)
	}, patience, again)
	b.untilReadyz(l, http.StatusOK, "ok")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		out, _, _ := b.command("status", "--prebind-namespace="+b.ns, "-o=json")
		assert.Contains(c, out, "PreBind plugin volumebinding: the service account lacks a permission", "its old objects decide")
	}, patience, again)
	assert.NoError(t, l.Err(), "the replica should keep running")
}

// After the loss of all replicas and their nodes, the API server binds exempt pods, such as Prebind's own. All other pods are bound when
// Prebind runs again.
func testAllReplicasDied(t *testing.T, w *world) {
	own := w.client.CoreV1().Pods(install.Namespace)
	bound := func(not ...corev1.Pod) []corev1.Pod {
		var pods []corev1.Pod
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			list, err := own.List(t.Context(), metav1.ListOptions{})
			require.NoError(c, err)
			pods = list.Items
			assert.Len(c, pods, 2)
			for _, pod := range pods {
				assert.NotEmpty(c, pod.Spec.NodeName, "%s should be bound", pod.Name)
				for _, old := range not {
					assert.NotEqual(c, old.UID, pod.UID)
				}
			}
		}, patience, again, "the Deployment should have two pods, each with a node")
		return pods
	}
	first := bound()
	for _, r := range w.prebind.Replicas() {
		require.NoError(t, r.Kill())
	}
	b, exempt := newBench(t, w, nil), newBench(t, w, map[string]string{"prebind.dev/exempt": ""})
	b.pod(cluster.DefaultScheduler)
	b.untilEvent("FailedScheduling", "failed calling webhook", install.WebhookName)
	exempt.pod(cluster.DefaultScheduler)
	exempt.untilBound()
	assert.Empty(t, exempt.decisions())
	now := int64(0)
	require.NoError(t, own.DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	bound(first...)
	b.assertNotBound()

	out, errs, code := b.command("explain", "pod", "--node=node-1", "-n="+b.ns)
	assert.Equal(t, 3, code, "explain should report an unknown result during an outage")
	assert.Empty(t, out)
	assert.Contains(t, errs, "the API server cannot reach Prebind")
	assert.Equal(t, 1, strings.Count(errs, "\n"), errs)

	for _, r := range w.prebind.Replicas() {
		require.NoError(t, r.Run(t.Context()))
	}
	b.assertTopology(b.untilBound())
}
