// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// policies creates BindPolicies as an administrator.
type policies struct {
	*bench
	client client.Client
}

func newPolicies(t *testing.T, w *world) *policies {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	c, err := client.New(w.cluster.Config(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	p := &policies{bench: newBench(t, w, nil), client: c}
	p.untilValidated()
	return p
}

// untilValidated waits until the API server can call the webhook that validates policies: the leader has copied the CA bundle.
func (p *policies) untilValidated() {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		policy := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}, Spec: v1alpha1.BindPolicySpec{Validations: []v1alpha1.Validation{{Expression: "nothing"}}}}
		assert.ErrorContains(c, p.client.Create(p.t.Context(), policy, client.DryRunAll), "undeclared reference to 'nothing'")
	}, patience, 50*time.Millisecond, "the API server should validate BindPolicies")
}

// untilReady waits until the condition Ready of the latest generation has the status, and returns the condition.
func (p *policies) untilReady(policy *v1alpha1.BindPolicy, status metav1.ConditionStatus) *metav1.Condition {
	p.t.Helper()
	var ready *metav1.Condition
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		require.NoError(c, p.client.Get(p.t.Context(), client.ObjectKeyFromObject(policy), policy))
		ready = meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionReady)
		require.NotNil(c, ready)
		assert.Equal(c, status, ready.Status, ready.Message)
		assert.Equal(c, policy.Generation, policy.Status.ObservedGeneration)
	}, patience, 50*time.Millisecond, "the policy should be Ready=%s", status)
	return ready
}

// grant grants Prebind a kind with a ClusterRole, and revokes it after the test.
func (p *policies) grant(group, resource string) {
	p.t.Helper()
	roles := p.bench.client.RbacV1().ClusterRoles()
	role, err := roles.Create(p.t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: map[string]string{"rbac.prebind.dev/aggregate-to-policy": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"get", "list", "watch"}}},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		_ = roles.Delete(context.WithoutCancel(p.t.Context()), role.Name, metav1.DeleteOptions{})
	})
}
