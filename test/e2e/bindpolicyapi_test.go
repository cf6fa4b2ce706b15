// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// policyComponent is the component of the plugin policy.
const policyComponent = "../../config/webhook/plugins/policy/"

// policyAPI is a control plane with the CustomResourceDefinitions of BindPolicies and BindTasks.
type policyAPI struct {
	*world
	client client.Client
}

// Tests of the API and of the permissions of BindPolicies and BindTasks. They use the shared control plane, whose installation does not
// have the plugin. No BindPolicy matches a pod there.
func TestBindPolicyAPI(t *testing.T) {
	t.Parallel()
	a := &policyAPI{world: shared}
	// A replica that starts during the test has the plugin on.
	for _, file := range []string{"role.yaml", "rolebinding.yaml", "crd.yaml", "tasks-crd.yaml", "tasks-handlers.yaml"} {
		a.apply(t, file)
	}
	a.connect(t)
	t.Run("validation", func(t *testing.T) { testPolicyValidation(t, a) })
	t.Run("task validation", func(t *testing.T) { testTaskValidation(t, a) })
	t.Run("task handlers", func(t *testing.T) { testTaskHandlers(t, a) })
}

// connect creates the client when the API server serves BindPolicies and BindTasks.
func (a *policyAPI) connect(t *testing.T) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		a.client, err = policyClient(a.cluster.Config())
		require.NoError(c, err)
		require.NoError(c, a.client.List(t.Context(), &v1alpha1.BindPolicyList{}))
		assert.NoError(c, a.client.List(t.Context(), &v1alpha1.BindTaskList{}))
	}, patience, 50*time.Millisecond, "the API server should serve BindPolicies and BindTasks")
}

func policyClient(config *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// apply applies a file of the component with server-side apply, and deletes its objects after the test.
func (w *world) apply(t *testing.T, file string) {
	t.Helper()
	out, err := w.cluster.Kubectl(t.Context(), "apply", "--server-side", "-f", policyComponent+file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() {
		out, err := w.cluster.Kubectl(context.WithoutCancel(t.Context()), "delete", "-f", policyComponent+file).CombinedOutput()
		assert.NoError(t, err, "%s", out)
	})
}

// The API server accepts the CustomResourceDefinition with the cost of its rules, and applies them. policy/files tests each rule.
func testPolicyValidation(t *testing.T, a *policyAPI) {
	p := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Spec: v1alpha1.BindPolicySpec{Mode: v1alpha1.ModeAudit}}
	assert.ErrorContains(t, a.client.Create(t.Context(), p, client.DryRunAll), "at least one of validations, waitFor, tasks and mutations is required")
	p.Spec.WaitFor = []v1alpha1.Wait{{Name: "a", Expression: "true"}}
	require.NoError(t, a.client.Create(t.Context(), p, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)))
}
