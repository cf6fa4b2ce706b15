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

// A bind waits for a handler, gets its annotation, and the BindTask ends with the pod.
func testPolicyTask(p *policies) {
	policy := p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	p.podWith(cluster.DefaultScheduler, toleration, p.steered())
	task := p.untilTask("the bind creates it", func(*v1alpha1.BindTask) bool { return true })
	assert.Equal(p.t, map[string]v1alpha1.ParameterValue{"node": v1alpha1.ParameterValue(node)}, task.Spec.Parameters)
	p.untilEvent("WaitingForPreBind", "policy: BindPolicy "+policy.Name+": waiting for handler "+prefetch+" to begin BindTask "+task.Name)
	p.assertNotBound()
	before := task.DeepCopy()
	task.Status.Conditions = []v1alpha1.TaskCondition{{Type: v1alpha1.TaskReady, Status: metav1.ConditionTrue}}
	task.Status.Annotations = map[string]v1alpha1.AnnotationValue{"cache": "hit"}
	require.NoError(p.t, p.client.Status().Patch(p.t.Context(), task, client.MergeFrom(before)))
	pod := p.untilSoonBound()
	assert.Equal(p.t, "hit", pod.Annotations[key(policy, "cache")])
	p.untilTask("it is confirmed", func(t *v1alpha1.BindTask) bool { return len(t.Spec.Attempts) == 0 })
	p.untilCounted(policy.Name, "waiting")
}
