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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

// With the Helm chart, pods of the real kube-scheduler get topology annotations, and the uninstallation is complete. It keeps only
// BindPolicies.
func TestInstallFromHelm(t *testing.T) {
	t.Parallel()
	w := ownWorldWith(t, install.Options{Helm: true, Values: []string{"prebindPlugins.policy.enabled=true"}}, 2)
	b := newBench(t, w, nil)
	b.pod(cluster.DefaultScheduler)
	b.assertTopology(b.untilBound())
	policies := &policyAPI{world: w}
	policies.connect(t)
	kept := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Spec: v1alpha1.BindPolicySpec{
		MatchConstraints: v1alpha1.MatchConstraints{SchedulerNames: []string{"none"}},
		Validations:      []v1alpha1.Validation{{Expression: "true"}},
	}}
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NoError(c, policies.client.Create(t.Context(), kept)) }, patience, again,
		"the API server should call the webhook for BindPolicies")
	testUninstall(t, w)
	assert.NoError(t, policies.client.Get(t.Context(), client.ObjectKeyFromObject(kept), kept), "BindPolicies belong to the operator")
}

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
