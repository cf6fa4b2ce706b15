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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	c, err := policyClient(w.cluster.Config())
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
