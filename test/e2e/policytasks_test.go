// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// A bind waits for a handler, gets its annotation, and the BindTask ends with the pod.
func testPolicyTask(p *policies) {
	policy := p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	bound := p.begin(cluster.DefaultScheduler, node, toleration)
	task := p.untilTask("the bind creates it", anyTask)
	assert.Equal(p.t, map[string]v1alpha1.ParameterValue{"node": v1alpha1.ParameterValue(node)}, task.Spec.Parameters)
	p.untilEvent("WaitingForPreBind", "policy: BindPolicy "+policy.Name+": waiting for handler "+prefetch+" to begin BindTask "+task.Name)
	assert.Empty(p.t, p.until("still unbound", notBound).Spec.NodeName)
	p.answers(task, v1alpha1.TaskReady, "")
	pod := p.endSoon(bound)
	assert.Equal(p.t, "hit", pod.Annotations[key(policy, "cache")])
	p.untilTask("it is confirmed", func(t *v1alpha1.BindTask) bool { return len(t.Spec.Attempts) == 0 })
	p.untilCounted(policy.Name, "enforce", "waiting")
}

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

// A bind of a pod that is deleted leaves no BindTask.
func testPolicyTaskPodDeleted(p *policies) {
	p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	bound := p.begin(byHand, node, toleration)
	p.untilTask("the bind creates it", anyTask)
	require.NoError(p.t, p.bench.client.CoreV1().Pods(p.ns).Delete(p.t.Context(), "pod", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	assert.Error(p.t, p.end(bound))
	p.untilNoTask()
}
