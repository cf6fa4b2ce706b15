// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/install"
)

// No bind of a steady stream fails while Prebind is removed as documented.
func testUninstall(t *testing.T, w *world) {
	t.Helper()
	s := newStream(t, w, "1s")
	s.during(func() {
		// Wait for some binds of each kind before the removal.
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, s.answered(), atLeast/4) }, patience, again)
		require.NoError(t, w.prebind.Uninstall(t.Context()))
		assert.Empty(t, w.prebind.Replicas())
		last := s.answered()
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, s.answered(), last+atLeast/4) }, patience, again, "binds should continue")
	})
	s.assertToldUntilRemoved()
	assertRemoved(t, w)
}

// assertToldUntilRemoved checks that pods have topology annotations before the removal, and are bound without them after it.
func (s *stream) assertToldUntilRemoved() {
	s.t.Helper()
	pods, err := s.client.CoreV1().Pods(s.ns).List(s.t.Context(), metav1.ListOptions{})
	require.NoError(s.t, err)
	var told, untold int
	for _, pod := range pods.Items {
		switch {
		case pod.Spec.NodeName == "":
		case pod.Annotations["topology.prebind.dev/hostname"] != "":
			told++
		default:
			untold++
		}
	}
	assert.Positive(s.t, told, "pods should have topology annotations before the removal")
	assert.Positive(s.t, untold, "pods should have no topology annotations after the removal")
}

// assertRemoved checks that no object of Prebind remains in the cluster.
func assertRemoved(t *testing.T, w *world) {
	t.Helper()
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=prebind"}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := w.client.CoreV1().Namespaces().Get(t.Context(), install.Namespace, metav1.GetOptions{})
		assert.True(c, apierrors.IsNotFound(err), "the namespace should be deleted: %v", err)
	}, patience, again)
	ctx := context.WithoutCancel(t.Context())
	webhooks, err := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, ours)
	require.NoError(t, err)
	assert.Empty(t, webhooks.Items)
	roles, err := w.client.RbacV1().ClusterRoles().List(ctx, ours)
	require.NoError(t, err)
	assert.Empty(t, roles.Items)
	bindings, err := w.client.RbacV1().ClusterRoleBindings().List(ctx, ours)
	require.NoError(t, err)
	assert.Empty(t, bindings.Items)
}
