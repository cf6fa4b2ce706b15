// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

// testExplainRole checks that the optional ClusterRole permits kubectl prebind explain in one namespace, but not a bind.
func testExplainRole(t *testing.T, w *world) {
	require.NoError(t, w.prebind.AddComponents(t.Context(), "explain"))
	b, other := newBench(t, w, nil), newBench(t, w, nil)
	const user = "ana"
	grant := func(namespace string) {
		b.kubectl("create", "rolebinding", "explain", "--namespace="+namespace, "--clusterrole=prebind-explain", "--user="+user)
	}
	grant(b.ns)
	config := rest.CopyConfig(w.cluster.Config())
	config.Impersonate.UserName = user
	ana, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)

	// No pod has this name, so no bind succeeds before the policy is in force.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		err := ana.CoreV1().Pods(b.ns).Bind(t.Context(), b.binding("node-1"), metav1.CreateOptions{})
		assert.ErrorContains(c, err, "permits only dry runs")
	}, patience, again, "the policy should be in force")

	b.claim("data", b.dynamic("10m"))
	b.pod(byHand, "data")
	other.pod(byHand)
	out, errs, code := b.command("explain", "pod", "--node=node-1", "-n="+b.ns, "--as="+user)
	assert.Equal(t, 1, code, "%s", errs)
	assert.Contains(t, out, "waiting for PersistentVolumeClaim "+b.ns+"/data")

	err = ana.CoreV1().Pods(b.ns).Bind(t.Context(), b.binding("node-1"), metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, user+": the ClusterRole prebind-explain permits only dry runs of Bindings")
	assert.NotContains(t, b.getClaim("data").Annotations, volume.AnnSelectedNode, "Prebind prepares nothing for a rejected Binding")

	_, errs, code = b.command("explain", "pod", "--node=node-1", "-n="+other.ns, "--as="+user)
	assert.Equal(t, 3, code, "a tenant cannot read the pods of another")
	assert.Contains(t, errs, "cannot get resource \"pods\"")

	_, err = ana.EventsV1().Events(b.ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err, "explain without --node reads events")
	_, errs, code = b.command("top", "--once", "--as="+user)
	assert.NotEqual(t, 0, code, "a tenant cannot see the binds of others")
	assert.Contains(t, errs, "leases")
	grant(install.Namespace)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, errs, code := b.command("top", "--once", "--as="+user)
		assert.Equal(c, 0, code, "%s", errs)
	}, patience, again)

	require.NoError(t, other.bindByHand(other.binding("node-1")), "administrators can bind")
	scheduled := newBench(t, w, nil)
	scheduled.pod(cluster.DefaultScheduler)
	scheduled.untilBound()
}
