// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

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
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		a.client, err = policyClient(a.cluster.Config())
		require.NoError(c, err)
		require.NoError(c, a.client.List(t.Context(), &v1alpha1.BindPolicyList{}))
		assert.NoError(c, a.client.List(t.Context(), &v1alpha1.BindTaskList{}))
	}, patience, 50*time.Millisecond, "the API server should serve BindPolicies and BindTasks")
	t.Run("validation", func(t *testing.T) { testPolicyValidation(t, a) })
	t.Run("no replica", func(t *testing.T) { testPolicyWithoutReplica(t, a) })
	t.Run("task validation", func(t *testing.T) { testTaskValidation(t, a) })
	t.Run("task handlers", func(t *testing.T) { testTaskHandlers(t, a) })
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
	require.NoError(t, w.cluster.RunKubectl(t.Context(), "", "apply", "--server-side", "-f", policyComponent+file))
	t.Cleanup(func() {
		assert.NoError(t, w.cluster.RunKubectl(context.WithoutCancel(t.Context()), "", "delete", "-f", policyComponent+file))
	})
}

// The API server accepts the CustomResourceDefinition with the cost of its rules, and applies them. policy/files tests each rule.
func testPolicyValidation(t *testing.T, a *policyAPI) {
	p := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Spec: v1alpha1.BindPolicySpec{Mode: v1alpha1.ModeAudit}}
	assert.ErrorContains(t, a.client.Create(t.Context(), p, client.DryRunAll), "at least one of validations, waitFor, tasks and mutations is required")
	p.Spec.WaitFor = []v1alpha1.Wait{{Name: "a", Expression: "true"}}
	require.NoError(t, a.client.Create(t.Context(), p, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)))
}

// While no replica answers, only new policies and changes of the spec are rejected: a GitOps tool can apply the others, and Prebind's correction.
func testPolicyWithoutReplica(t *testing.T, a *policyAPI) {
	p := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "no-replica"}, Spec: v1alpha1.BindPolicySpec{
		Mode: v1alpha1.ModeAudit, WaitFor: []v1alpha1.Wait{{Name: "a", Expression: "true"}},
	}}
	require.NoError(t, a.client.Create(t.Context(), p))
	t.Cleanup(func() { assert.NoError(t, a.client.Delete(context.WithoutCancel(t.Context()), p)) })
	content, err := os.ReadFile(policyComponent + "webhook.yaml")
	require.NoError(t, err)
	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	require.NoError(t, yaml.UnmarshalStrict(content, webhook))
	webhook.Name, webhook.Webhooks[0].ClientConfig.Service.Name = "no-replica", "no-replica" // Prebind gives its own the CA bundle.
	configurations := a.world.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err = configurations.Create(t.Context(), webhook, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, configurations.Delete(context.WithoutCancel(t.Context()), webhook.Name, metav1.DeleteOptions{}))
	})
	patch := func(patch string) error {
		return a.client.Patch(t.Context(), p.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	other := p.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Name: "other"}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.ErrorContains(c, a.client.Create(t.Context(), other.DeepCopy(), client.DryRunAll), "failed calling webhook")
	}, patience, 50*time.Millisecond)
	require.ErrorContains(t, patch(`{"spec":{"mode":"Enforce"}}`), "failed calling webhook")
	require.NoError(t, patch(`{"spec":{"mode":"Audit"},"metadata":{"labels":{"a":"b"}}}`))
}

// flush is another handler than prefetch.
const flush = "example.com/flush"

func newTask(name string) *v1alpha1.BindTask {
	return &v1alpha1.BindTask{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.BindTaskSpec{
		Policy: "images", Task: "prefetch", Handler: prefetch, NodeName: "node-1", Retain: v1alpha1.RetainUntilBound, Attempts: []string{"first"},
		Pod:        v1alpha1.PodReference{Namespace: "shop", Name: "cart", UID: types.UID("uid-of-" + name)},
		Parameters: map[string]v1alpha1.ParameterValue{"image": "cart:v1"},
	}}
}

// patchTask changes a BindTask with a merge patch of the BindTask, or of its subresource status.
func patchTask(t *testing.T, c client.Client, name, subresource, patch string) error {
	t.Helper()
	task, raw := newTask(name), client.RawPatch(types.MergePatchType, []byte(patch))
	if subresource != "" {
		return c.SubResource(subresource).Patch(t.Context(), task, raw)
	}
	return c.Patch(t.Context(), task, raw)
}

// texts returns a map with n values of the length.
func texts[T ~string](n, length int) map[string]T {
	out := map[string]T{}
	for i := range n {
		out[fmt.Sprint(i)] = T(strings.Repeat("a", length))
	}
	return out
}

// The API server accepts the CustomResourceDefinition with the cost of its rule, a BindTask of the largest size, and only changes of attempts.
func testTaskValidation(t *testing.T, a *policyAPI) {
	largest := newTask("largest")
	largest.Spec.Parameters = texts[v1alpha1.ParameterValue](32, 4096)
	require.NoError(t, a.client.Create(t.Context(), largest, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict)))
	invalid := newTask("invalid")
	invalid.Spec.Handler = "prefetch"
	assert.ErrorContains(t, a.client.Create(t.Context(), invalid, client.DryRunAll), "spec.handler in body should match")
	task := newTask("validation")
	task.Status.Conditions = []v1alpha1.TaskCondition{{Type: v1alpha1.TaskReady, Status: metav1.ConditionTrue}}
	require.NoError(t, a.client.Create(t.Context(), task))
	assert.Empty(t, task.Status, "the status of a new BindTask cannot be set")
	for _, change := range []string{
		`"policy":"b"`, `"task":"b"`, `"handler":"b.c/d"`, `"pod":{"name":"b"}`, `"pod":{"namespace":"b"}`, `"pod":{"uid":"b"}`, `"nodeName":"b"`,
		`"retain":"WhilePodRuns"`, `"parameters":null`, `"parameters":{"image":"b"}`, `"parameters":{"b":"b"}`,
	} {
		assert.ErrorContains(t, patchTask(t, a.client, task.Name, "", `{"spec":{`+change+`}}`), "only attempts can change")
	}
	require.NoError(t, patchTask(t, a.client, task.Name, "", `{"spec":{"attempts":["first","second"]}}`))
	require.NoError(t, patchTask(t, a.client, task.Name, "", `{"spec":{"attempts":null}}`))
	testTaskStatus(t, a, task)
}

// A handler can be a script: a condition needs only type and status. kubectl shows it, and field selectors find a handler's BindTasks.
func testTaskStatus(t *testing.T, a *policyAPI, task *v1alpha1.BindTask) {
	require.NoError(t, a.client.Get(t.Context(), client.ObjectKeyFromObject(task), task))
	task.Status.Annotations = texts[v1alpha1.AnnotationValue](16, 1024)
	require.NoError(t, client.NewDryRunClient(a.client).Status().Update(t.Context(), task.DeepCopy()))
	script := `{"status":{"conditions":[{"type":"Ready","status":"True"},{"type":"Failed","status":"False","reason":"NoSpace"}]}}`
	require.NoError(t, patchTask(t, a.client, task.Name, "status", script))
	require.NoError(t, a.client.Get(t.Context(), client.ObjectKeyFromObject(task), task))
	assert.True(t, task.IsTrue(v1alpha1.TaskReady))

	selector := fmt.Sprintf("--field-selector=spec.handler=%s,spec.nodeName=node-1,spec.pod.uid=%s", prefetch, task.Spec.Pod.UID)
	out, err := a.cluster.Kubectl(t.Context(), "get", "bt", selector).Output()
	require.NoError(t, err)
	lines := strings.Split(string(out), "\n")
	require.Len(t, lines, 3)
	assert.Equal(t, []string{"NAME", "HANDLER", "NAMESPACE", "POD", "NODE", "READY", "FAILED", "AGE"}, strings.Fields(lines[0]))
	assert.Equal(t, []string{task.Name, prefetch, "shop", "cart", "node-1", "True", "NoSpace"}, strings.Fields(lines[1])[:7])
	list := &v1alpha1.BindTaskList{}
	require.NoError(t, a.client.List(t.Context(), list, client.MatchingFields{"spec.handler": flush}))
	assert.Empty(t, list.Items)
}

// as returns a client with the permissions of the user.
func (a *policyAPI) as(t *testing.T, user string) client.Client {
	t.Helper()
	config := rest.CopyConfig(a.cluster.Config())
	config.Impersonate.UserName = user
	c, err := policyClient(config)
	require.NoError(t, err)
	return c
}

// userWith returns a client of a user with these ClusterRoles.
func (a *policyAPI) userWith(t *testing.T, user string, roles ...string) client.Client {
	t.Helper()
	for _, role := range roles {
		(&bench{world: a.world, t: t}).kubectl("create", "clusterrolebinding", user+"-"+role, "--clusterrole="+role, "--user="+user)
	}
	return a.as(t, user)
}

// handle creates a ClusterRole with the permission of a handler, and returns its name.
func (a *policyAPI) handle(t *testing.T, handler string) string {
	t.Helper()
	role, err := a.world.client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "handle-"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"handlers"}, ResourceNames: []string{handler}, Verbs: []string{"handle"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return role.Name
}

// A handler changes only the status and its own finalizer, and only of its own BindTasks.
func testTaskHandlers(t *testing.T, a *policyAPI) {
	const role = "prebind-bindtask-handler"
	users := map[string]client.Client{
		"prefetch": a.userWith(t, "prefetch", role, a.handle(t, prefetch)),
		"flush":    a.userWith(t, "flush", role, a.handle(t, flush)),
		"stranger": a.userWith(t, "stranger", role),
		"tenant":   a.userWith(t, "tenant", "admin"),
		"prebind":  a.as(t, "system:serviceaccount:prebind-system:prebind"),
	}
	task := newTask("handlers")
	task.Labels, task.Annotations, task.Finalizers = map[string]string{"a": "b"}, map[string]string{"a": "b"}, []string{"example.com/other"}
	require.NoError(t, users["prebind"].Create(t.Context(), task))
	t.Cleanup(func() {
		none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		assert.NoError(t, client.IgnoreNotFound(a.client.Patch(context.WithoutCancel(t.Context()), newTask(task.Name), none)))
	})
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.ErrorContains(c, patchTask(t, client.NewDryRunClient(users["stranger"]), task.Name, "", "{}"), "is not a handler")
		assert.NoError(c, patchTask(t, client.NewDryRunClient(users["prefetch"]), task.Name, "", "{}"))
		assert.ErrorContains(c, patchTask(t, client.NewDryRunClient(users["flush"]), task.Name, "", "{}"), "is not a handler")
	}, patience, again, "permissions and policy should be in force")

	const ready = `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
	for name, tc := range map[string]struct{ user, subresource, patch, says string }{
		"status of another's BindTask":    {user: "flush", subresource: "status", patch: ready, says: "flush is not a handler example.com/prefetch: grant it the verb handle on handlers.policy.prebind.dev with this resource name"},
		"finalizer on another's BindTask": {user: "flush", patch: `{"metadata":{"finalizers":["example.com/other","example.com/flush"]}}`, says: "flush is not a handler example.com/prefetch"},
		"attempt":                         {user: "prefetch", patch: `{"spec":{"attempts":["mine"]}}`, says: "a handler changes only the status of a BindTask and the finalizer example.com/prefetch: leave spec unchanged"},
		"handler":                         {user: "flush", patch: `{"spec":{"handler":"example.com/flush"}}`, says: "only attempts can change"},
		"label":                           {user: "prefetch", patch: `{"metadata":{"labels":{"a":"c"}}}`, says: "leave labels unchanged"},
		"annotation":                      {user: "prefetch", patch: `{"metadata":{"annotations":{"a":null}}}`, says: "leave annotations unchanged"},
		"owner":                           {user: "prefetch", patch: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"node-1","uid":"a"}]}}`, says: "leave ownerReferences unchanged"},
		"another's finalizer":             {user: "prefetch", patch: `{"metadata":{"finalizers":["example.com/prefetch"]}}`, says: "leave other finalizers unchanged"},
		"two finalizers":                  {user: "prefetch", patch: `{"metadata":{"finalizers":["example.com/other","example.com/prefetch","example.com/mine"]}}`, says: "leave other finalizers unchanged"},
		"several":                         {user: "prefetch", patch: `{"metadata":{"labels":null,"finalizers":null},"spec":{"attempts":["mine"]}}`, says: "leave spec, labels, other finalizers unchanged"},
		"tenant":                          {user: "tenant", patch: `{}`, says: `User "tenant" cannot patch resource "bindtasks"`},
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorContains(t, patchTask(t, users[tc.user], task.Name, tc.subresource, tc.patch), tc.says)
		})
	}
	assert.True(t, apierrors.IsForbidden(users["tenant"].List(t.Context(), &v1alpha1.BindTaskList{})), "tenants can read none")
	assert.True(t, apierrors.IsForbidden(users["prefetch"].Create(t.Context(), newTask("created"))), "a handler creates none")
	assert.True(t, apierrors.IsForbidden(users["prefetch"].Delete(t.Context(), task)), "a handler deletes none")

	for user, patch := range map[string]string{"prefetch": `{"metadata":{"finalizers":["example.com/other","example.com/prefetch"]}}`, "prebind": `{"spec":{"attempts":["first","second"]}}`} {
		require.NoError(t, patchTask(t, users[user], task.Name, "", patch), user)
	}
	require.NoError(t, patchTask(t, users["prefetch"], task.Name, "status", ready))
	require.NoError(t, users["prefetch"].Get(t.Context(), client.ObjectKeyFromObject(task), task))
	assert.True(t, task.IsTrue(v1alpha1.TaskReady))
	assert.Equal(t, []string{"first", "second"}, task.Spec.Attempts)

	// The garbage collector removes its finalizer, and the handler its own.
	require.NoError(t, patchTask(t, a.client, task.Name, "", `{"metadata":{"finalizers":["example.com/prefetch"]}}`))
	require.NoError(t, users["prebind"].Delete(t.Context(), task, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, a.client.Get(t.Context(), client.ObjectKeyFromObject(task), task))
		assert.Equal(c, []string{prefetch}, task.Finalizers)
	}, patience, again, "the garbage collector should remove its finalizer")
	require.NoError(t, patchTask(t, users["prefetch"], task.Name, "", `{"metadata":{"finalizers":null}}`))
	assert.True(t, apierrors.IsNotFound(a.client.Get(t.Context(), client.ObjectKeyFromObject(task), task)))

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		policy, err := a.world.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "bindtasks.prebind.dev", metav1.GetOptions{})
		require.NoError(c, err)
		require.NotNil(c, policy.Status.TypeChecking)
		assert.Empty(c, policy.Status.TypeChecking.ExpressionWarnings)
	}, patience, again, "the expressions should have the types of a BindTask")
}
