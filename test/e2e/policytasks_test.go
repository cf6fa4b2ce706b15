// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
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
	p.untilTask("it is confirmed", isConfirmed)
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

// unhandled is a task whose handler is gone. %s is what happens then.
const unhandled = `tasks: [{name: prefetch, handler: ` + prefetch + `, timeout: 2s, onTimeout: %s}]`

// A handler that is gone rejects the bind when the time is over.
func testPolicyTaskTimeoutRefuse(p *policies) {
	p.add("task", fmt.Sprintf(unhandled, v1alpha1.OnTimeoutRefuse))
	node, toleration := p.ownNode("task")
	p.assertRefused(p.end(p.begin(byHand, node, toleration)), "still waiting for handler "+prefetch+" to begin BindTask", "timed out after 2s")
	p.untilNoTask()
}

// A handler that is gone delays the bind, and the time is over: the policy allows it. A late answer has no effect.
func testPolicyTaskTimeoutAllow(p *policies) {
	policy := p.add("task", fmt.Sprintf(unhandled, v1alpha1.OnTimeoutAllow))
	node, toleration := p.ownNode("task")
	p.begin(cluster.DefaultScheduler, node, toleration)
	p.untilBound()
	task := p.untilTask("it is confirmed", isConfirmed)
	p.answers(task, v1alpha1.TaskReady, "")
	p.answers(task, v1alpha1.TaskFailed, "the disk is full")
	assert.NotContains(p.t, p.untilBound().Annotations, key(policy, "cache"))
	p.assertNeverFailed()
}

// isConfirmed returns whether the pod of the BindTask is bound.
func isConfirmed(t *v1alpha1.BindTask) bool { return len(t.Spec.Attempts) == 0 }

// A pod with the name of another one does not get what was done for that one.
func testPolicyTaskPodReplaced(p *policies) {
	p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	bound := p.begin(byHand, node, toleration)
	earlier := p.untilTask("the bind creates it", anyTask)
	p.setFinalizer(earlier, prefetch)
	require.NoError(p.t, p.bench.client.CoreV1().Pods(p.ns).Delete(p.t.Context(), "pod", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	assert.Error(p.t, p.end(bound))
	earlier = p.untilTask("the bind is over", func(t *v1alpha1.BindTask) bool { return t.DeletionTimestamp != nil })
	bound = p.begin(byHand, node, toleration)
	task := p.untilTask("the bind of the other pod creates its own", func(t *v1alpha1.BindTask) bool { return t.Spec.Pod.UID != earlier.Spec.Pod.UID })
	p.answers(earlier, v1alpha1.TaskReady, "")
	p.untilEvent("WaitingForPreBind", "to begin BindTask "+task.Name)
	assert.Empty(p.t, p.until("still unbound", notBound).Spec.NodeName)
	p.setFinalizer(earlier)
	p.answers(task, v1alpha1.TaskReady, "")
	require.NoError(p.t, p.end(bound))
	assert.Equal(p.t, task.Spec.Pod.UID, p.untilBound().UID)
}

// A BindTask that somebody deletes while the bind waits is created again, when its handler has undone its work.
func testPolicyTaskDeletedByHand(p *policies) {
	p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	bound := p.begin(cluster.DefaultScheduler, node, toleration)
	earlier := p.untilTask("the bind creates it", anyTask)
	p.setFinalizer(earlier, prefetch)
	require.NoError(p.t, p.client.Delete(p.t.Context(), earlier))
	p.answers(earlier, v1alpha1.TaskReady, "")
	assert.Empty(p.t, p.until("still unbound", notBound).Spec.NodeName)
	p.setFinalizer(p.untilTask("it is undone", func(t *v1alpha1.BindTask) bool { return t.DeletionTimestamp != nil }))
	task := p.untilTask("the bind creates it again", func(t *v1alpha1.BindTask) bool { return t.UID != earlier.UID })
	assert.Equal(p.t, earlier.Name, task.Name)
	p.answers(task, v1alpha1.TaskReady, "")
	p.endSoon(bound)
}

// Two schedulers choose two nodes for a pod. Each bind has its BindTask, and that of the loser is deleted.
func testPolicyTaskTwoNodes(p *policies) {
	p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	loses := p.begin(byHand, node, toleration)
	lost := p.untilTask("the first bind creates it", anyTask)
	other, _ := p.ownNode("other")
	wins := p.beginBind(other)
	task := p.untilTask("the second bind creates it", func(t *v1alpha1.BindTask) bool { return t.Spec.NodeName == other })
	p.answers(task, v1alpha1.TaskReady, "")
	require.NoError(p.t, p.end(wins))
	assert.True(p.t, apierrors.IsConflict(p.end(loses)), "the pod is bound")
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		assert.True(c, apierrors.IsNotFound(p.client.Get(p.t.Context(), client.ObjectKeyFromObject(lost), lost)), "the BindTask of the loser is left")
	}, patience, again)
	p.untilTask("that of the winner is kept", func(t *v1alpha1.BindTask) bool { return t.UID == task.UID && isConfirmed(t) })
}

// Many pods with a task are bound at the same time, and nothing is left. The test prints how long it takes from the answer of the handler to
// the bind.
func testPolicyTaskStorm(p *policies) {
	const pods = 200
	p.add("task", `tasks: [{name: prefetch, handler: `+prefetch+`, timeout: 5m, retain: UntilBound}]`)
	// Nothing else takes place at the same time in this namespace.
	require.NoError(p.t, p.bench.client.CoreV1().Pods(p.ns).Delete(p.t.Context(), probe, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	began := time.Now()
	answered := p.answerAll()
	boundAt := p.watchBinds()
	for i := range pods {
		_, err := p.createPod(fmt.Sprintf("pod-%d", i), cluster.DefaultScheduler)
		require.NoError(p.t, err)
	}
	p.untilAllBound(pods)
	p.t.Logf("%d pods were bound in %s", pods, time.Since(began).Round(time.Millisecond))
	p.untilNoTask()
	var took []time.Duration
	boundAt.Range(func(uid, at any) bool {
		from, _ := answered.Load(uid)
		began, known := from.(time.Time)
		if ended, ok := at.(time.Time); ok && known {
			took = append(took, ended.Sub(began))
		}
		return true
	})
	require.Len(p.t, took, pods)
	slices.Sort(took)
	p.t.Logf("from the answer to the bind: median %s, 99 of 100 %s, longest %s", took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
}

// answerAll is a handler that is ready at once for each BindTask of the namespace, until the end of the test. It returns when it began to
// answer, by the UIDs of the pods.
func (p *policies) answerAll() *sync.Map {
	p.t.Helper()
	var answered sync.Map
	c, err := client.NewWithWatch(p.cluster.Config(), client.Options{Scheme: p.client.Scheme()})
	require.NoError(p.t, err)
	tasks, err := c.Watch(p.t.Context(), &v1alpha1.BindTaskList{}, client.MatchingFields{"spec.handler": prefetch})
	require.NoError(p.t, err)
	p.t.Cleanup(tasks.Stop)
	go func() {
		for event := range tasks.ResultChan() {
			task, ok := event.Object.(*v1alpha1.BindTask)
			if !ok || event.Type != watch.Added || task.Spec.Pod.Namespace != p.ns {
				continue
			}
			answered.Store(task.Spec.Pod.UID, time.Now())
			go func() {
				_ = c.Status().Patch(p.t.Context(), task, client.RawPatch(types.MergePatchType, []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)))
			}()
		}
	}()
	return &answered
}

// watchBinds returns when the pods of the namespace have a node, by their UIDs.
func (p *policies) watchBinds() *sync.Map {
	p.t.Helper()
	var boundAt sync.Map
	pods, err := p.bench.client.CoreV1().Pods(p.ns).Watch(p.t.Context(), metav1.ListOptions{})
	require.NoError(p.t, err)
	p.t.Cleanup(pods.Stop)
	go func() {
		for event := range pods.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				boundAt.LoadOrStore(pod.UID, time.Now())
			}
		}
	}()
	return &boundAt
}

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

// A replica is killed while the bind waits for a task. Another one continues with the same BindTask.
func testTaskOfKilledReplica(p *policies) {
	policy := p.add("task", prefetchTask)
	node, toleration := p.ownNode("task")
	p.begin(cluster.DefaultScheduler, node, toleration)
	task := p.untilTask("the bind creates it", anyTask)
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
