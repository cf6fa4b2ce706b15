// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/cluster"
)

// prefetch is the handler of these tests. It is also its finalizer.
const prefetch = "example.com/prefetch"

const prefetchTask = `tasks: [{name: prefetch, handler: ` + prefetch + `, parameters: [{key: node, valueExpression: node.metadata.name}]}]`

// untilTask waits until the BindTask of the pod of the test fulfills the condition.
func (p *policies) untilTask(what string, condition func(*v1alpha1.BindTask) bool) *v1alpha1.BindTask {
	p.t.Helper()
	var found *v1alpha1.BindTask
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		var all v1alpha1.BindTaskList
		require.NoError(c, p.client.List(p.t.Context(), &all, client.MatchingFields{"spec.handler": prefetch}))
		for i := range all.Items {
			if t := &all.Items[i]; t.Spec.Pod.Namespace == p.ns && condition(t) {
				found = t
				return
			}
		}
		assert.Fail(c, "no such BindTask")
	}, patience, again, what)
	return found
}

// untilNoTask waits until no BindTask of the namespace of the test exists.
func (p *policies) untilNoTask() {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		var all v1alpha1.BindTaskList
		require.NoError(c, p.client.List(p.t.Context(), &all))
		for _, t := range all.Items {
			assert.NotEqual(c, p.ns, t.Spec.Pod.Namespace, "BindTask %s is left", t.Name)
		}
	}, patience, again)
}

// answers reports a condition of the BindTask, as its handler does.
func (p *policies) answers(task *v1alpha1.BindTask, condition, message string) {
	p.t.Helper()
	before := task.DeepCopy()
	task.Status.Conditions = []v1alpha1.TaskCondition{{Type: condition, Status: metav1.ConditionTrue, Message: message}}
	task.Status.Annotations = map[string]v1alpha1.AnnotationValue{"cache": "hit"}
	require.NoError(p.t, p.client.Status().Patch(p.t.Context(), task, client.MergeFrom(before)))
}

// setFinalizer adds the finalizer of the handler, or removes it.
func (p *policies) setFinalizer(task *v1alpha1.BindTask, finalizers ...string) {
	p.t.Helper()
	before := task.DeepCopy()
	task.Finalizers = finalizers
	require.NoError(p.t, p.client.Patch(p.t.Context(), task, client.MergeFrom(before)))
}

func anyTask(*v1alpha1.BindTask) bool { return true }

// A handler that fails rejects the bind with its message. The handler undoes its work under its finalizer.
func testPolicyTaskFailed(p *policies) {
	p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	bound := p.begin(byHand, node, toleration)
	task := p.untilTask("the bind creates it", anyTask)
	p.setFinalizer(task, prefetch)
	p.answers(task, v1alpha1.TaskFailed, "the disk is full")
	p.assertRefused(p.end(bound), "task prefetch of "+prefetch+" failed: the disk is full")
	task = p.untilTask("the bind is over", func(t *v1alpha1.BindTask) bool { return t.DeletionTimestamp != nil })
	p.setFinalizer(task)
	p.untilNoTask()
}

// isConfirmed returns whether the pod of the BindTask is bound.
func isConfirmed(t *v1alpha1.BindTask) bool { return len(t.Spec.Attempts) == 0 }

// forgetful denies Prebind to confirm a BindTask of the namespace %[1]s.
const forgetful = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: forget-%[1]s}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [policy.prebind.dev], apiVersions: [v1alpha1], operations: [UPDATE], resources: [bindtasks]}]}
  validations: [{expression: "has(object.spec.attempts) || object.spec.pod.namespace != '%[1]s'"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: forget-%[1]s}
spec:
  policyName: forget-%[1]s
  validationActions: [Deny]
`

// A bind waits for a handler, gets its annotation, and the BindTask ends with the pod. A replica is killed in the meantime. Another one
// continues with the same BindTask.
func testTaskOfKilledReplica(p *policies) {
	policy := p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	p.begin(cluster.DefaultScheduler, node, toleration)
	task := p.untilTask("the bind creates it", anyTask)
	assert.Equal(p.t, map[string]v1alpha1.ParameterValue{"node": v1alpha1.ParameterValue(node)}, task.Spec.Parameters)
	p.untilEvent("WaitingForPreBind", "policy: BindPolicy "+policy.Name+": waiting for handler "+prefetch+" to begin BindTask "+task.Name)
	p.assertNotBound()
	killed := p.replicaOfAttempt(task.Spec.Attempts[0])
	require.NoError(p.t, killed.Kill())
	joined := p.untilTask("another replica joins", func(t *v1alpha1.BindTask) bool {
		return slices.ContainsFunc(t.Spec.Attempts, func(a string) bool { return a != task.Spec.Attempts[0] })
	})
	assert.Equal(p.t, task.UID, joined.UID)
	p.answers(joined, v1alpha1.TaskReady, "")
	assert.Equal(p.t, "hit", p.untilBound().Annotations[key(policy, "cache")])
	confirmed := p.untilTask("it is confirmed", isConfirmed)
	assert.Equal(p.t, task.UID, confirmed.UID)
	require.NoError(p.t, killed.Restart(p.t.Context()))
}

// A replica is killed after the bind, before it has confirmed the BindTask. The sweep of another one confirms it.
func testTaskOfBoundPodIsSwept(p *policies) {
	p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	manifest := fmt.Sprintf(forgetful, p.ns)
	p.manifest("apply", manifest)
	bound := p.begin(byHand, node, toleration)
	task := p.untilTask("the bind creates it", anyTask)
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		raw := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"attempts":null}}`))
		assert.ErrorContains(c, p.client.Patch(p.t.Context(), task.DeepCopy(), raw, client.DryRunAll), "failed expression")
	}, patience, again, "the policy should be in force")
	p.answers(task, v1alpha1.TaskReady, "")
	require.NoError(p.t, p.end(bound))
	killed := p.replicaOfAttempt(task.Spec.Attempts[0])
	require.NoError(p.t, killed.Kill())
	p.manifest("delete", manifest)
	assert.NotEmpty(p.t, p.untilTask("it is left", anyTask).Spec.Attempts)
	swept := p.untilTask("it is confirmed", isConfirmed)
	assert.Equal(p.t, task.UID, swept.UID)
	require.NoError(p.t, killed.Restart(p.t.Context()))
}
