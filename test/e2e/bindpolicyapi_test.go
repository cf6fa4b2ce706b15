// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
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
	t.Run("status", func(t *testing.T) { testPolicyStatus(t, a) })
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

// The status is a subresource, kubectl shows it, and only changes of the spec are generations.
func testPolicyStatus(t *testing.T, a *policyAPI) {
	p := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "status"}, Spec: v1alpha1.BindPolicySpec{
		MatchConstraints: v1alpha1.MatchConstraints{SchedulerNames: []string{"none"}},
		Validations:      []v1alpha1.Validation{{Expression: "true"}},
		Mode:             v1alpha1.ModeAudit,
	}}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonForbidden, Message: "no permission", ObservedGeneration: 1}
	meta.SetStatusCondition(&p.Status.Conditions, ready)
	require.NoError(t, a.client.Create(t.Context(), p))
	assert.Empty(t, p.Status, "a user cannot set the status of a new policy")

	meta.SetStatusCondition(&p.Status.Conditions, ready)
	p.Status.ObservedGeneration = p.Generation
	p.Status.TypeChecking = &v1alpha1.TypeChecking{ExpressionWarnings: []v1alpha1.ExpressionWarning{{FieldRef: "spec.validations[0].expression", Warning: "a"}}}
	p.Spec.Mode = v1alpha1.ModeEnforce
	require.NoError(t, a.client.Status().Update(t.Context(), p))
	require.NoError(t, a.client.Get(t.Context(), client.ObjectKeyFromObject(p), p))
	assert.Equal(t, v1alpha1.ModeAudit, p.Spec.Mode, "an update of the status does not change the spec")
	assert.EqualValues(t, 1, p.Generation)
	assert.EqualValues(t, 1, p.Status.ObservedGeneration)
	assert.Equal(t, "a", p.Status.TypeChecking.ExpressionWarnings[0].Warning)

	changed := p.DeepCopy()
	changed.Spec.Validations[0].Expression = "false"
	changed.Status = v1alpha1.BindPolicyStatus{}
	require.NoError(t, a.client.Update(t.Context(), changed))
	assert.EqualValues(t, 2, changed.Generation)
	assert.Equal(t, p.Status, changed.Status, "an update of the spec does not change the status")

	out, err := a.cluster.Kubectl(t.Context(), "get", "bp", "status").Output()
	require.NoError(t, err)
	lines := strings.Split(string(out), "\n")
	require.Len(t, lines, 3)
	assert.Equal(t, []string{"NAME", "READY", "REASON", "MODE", "AGE"}, strings.Fields(lines[0]))
	assert.Equal(t, []string{"status", "False", "Forbidden", "Audit"}, strings.Fields(lines[1])[:4])
}
