// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
	"github.com/prebind/prebind/webhook"
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

// probe is a pod of the test that no scheduler binds. Dry runs of its bind show the policies of each replica.
const probe = "probe"

// add creates the policy <namespace>-<name> for the namespace of the test, and waits until all replicas apply it. It deletes the policy
// after the test.
func (p *policies) add(name, spec string) *v1alpha1.BindPolicy {
	p.t.Helper()
	policy := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.ns + "-" + name}}
	require.NoError(p.t, yaml.UnmarshalStrict([]byte(spec), &policy.Spec), "%s", spec)
	policy.Spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": p.ns}}
	require.NoError(p.t, p.client.Create(p.t.Context(), policy))
	p.t.Cleanup(func() {
		assert.NoError(p.t, client.IgnoreNotFound(p.client.Delete(context.WithoutCancel(p.t.Context()), policy)))
	})
	p.untilFound(policy.Name)
	return policy
}

// probing creates the pod of dry runs, if it does not exist.
func (p *policies) probing(options ...gen.PodOption) {
	p.t.Helper()
	if _, err := p.bench.client.CoreV1().Pods(p.ns).Get(p.t.Context(), probe, metav1.GetOptions{}); err == nil {
		return
	}
	_, err := p.createPod(probe, byHand, options...)
	require.NoError(p.t, err)
}

// untilFound waits until a dry run in each replica shows a finding of the policy.
func (p *policies) untilFound(policy string) {
	p.t.Helper()
	p.probing()
	p.untilAnswered(p.probeBinding(), func(a *admissionv1.AdmissionResponse) bool {
		return slices.ContainsFunc(findingsIn(a), func(f framework.Finding) bool {
			return f.Name == policy
		})
	})
}

// probeBinding requests an explanation of the bind of the probe to node-1.
func (p *policies) probeBinding() *corev1.Binding {
	return gen.Binding(gen.Pod(probe, gen.InNamespace(p.ns)), "node-1", gen.Annotation(webhook.ExplainAnnotation, ""))
}

// findingsIn returns the findings of the plugin policy in the answer to a request for an explanation.
func findingsIn(a *admissionv1.AdmissionResponse) []framework.Finding {
	for _, warning := range a.Warnings {
		x, err := webhook.DecodeExplanation(warning)
		if err != nil || x == nil {
			continue
		}
		for _, plugin := range x.Plugins {
			if plugin.Name == "policy" {
				return plugin.Findings
			}
		}
	}
	return nil
}

// begin creates the pod "pod". It posts its Binding to the node if the scheduler is byHand. The result of the Binding is nil for
// kube-scheduler.
func (p *policies) begin(scheduler, node string, options ...gen.PodOption) <-chan error {
	p.t.Helper()
	p.podWith(scheduler, append(options, p.steered())...)
	if scheduler == byHand {
		return p.beginBind(node)
	}
	return nil
}

// key returns the key of an annotation or label of the policy without a prefix.
func key(policy *v1alpha1.BindPolicy, key string) string {
	return policy.Name + ".policy.prebind.dev/" + key
}

// untilCounted waits until the replicas have together counted results of the policy.
func (p *policies) untilCounted(policy, result string) {
	p.t.Helper()
	labels := `mode="enforce",policy="` + policy + `",result="` + result + `"`
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		counted := 0.0
		for _, r := range p.prebind.Replicas() {
			all, err := r.Metrics(p.t.Context())
			require.NoError(c, err)
			n, _ := install.Sum(all, "prebind_policy_results_total", labels)
			counted += n
		}
		assert.Positive(c, counted, "no replica has counted %s", labels)
	}, patience, again)
}

// A pod gets annotations and labels with the key of the policy, and with a prefix that the operator allows.
func testPolicyKeys(p *policies) {
	policy := p.add("keys", `
variables: [{name: zone, expression: "node.metadata.labels['topology.kubernetes.io/zone']"}]
mutations:
  annotations: [{key: zone, valueExpression: variables.zone}, {key: ray.io/zone, valueExpression: "'zone-' + variables.zone"}, {key: none, valueExpression: "null"}]
  labels: [{key: rack, valueExpression: "'in-' + pod.metadata.namespace"}, {key: ray.io/node, valueExpression: node.metadata.name}]
`)
	node, toleration := p.ownNode("keys")
	p.podWith(cluster.DefaultScheduler, toleration, p.steered(), gen.Annotation("ray.io/zone", "old"))
	pod := p.untilBound()
	p.assertTopology(pod)
	p.assertNeverFailed()
	zone := pod.Annotations["topology.prebind.dev/zone"]
	assert.Equal(p.t, zone, pod.Annotations[key(policy, "zone")])
	assert.Equal(p.t, "zone-"+zone, pod.Annotations["ray.io/zone"], "the value of the policy should replace that of the pod")
	assert.NotContains(p.t, pod.Annotations, key(policy, "none"))
	p.assertCopied(p.t, pod, key(policy, "rack"), "in-"+p.ns)
	p.assertCopied(p.t, pod, "ray.io/node", node)
}

// rejectsPools rejects nodes that are not in the pool ml.
const rejectsPools = `
variables: [{name: pool, expression: "node.metadata.labels[?'pool'].orValue('none')"}]
validations:
- {expression: "variables.pool == 'ml'", messageExpression: "'pod ' + pod.metadata.name + ' needs the pool ml, and node ' + node.metadata.name + ' has ' + variables.pool"}
`

// kube-scheduler gets the message, and chooses another node.
func testPolicyRejectsNode(p *policies) {
	policy := p.add("pool", rejectsPools)
	web, toleration := p.ownNode("web")
	p.prefersNot(web, toleration, p.steered())
	message := "policy: BindPolicy " + policy.Name + ": pod pod needs the pool ml, and node " + web + " has none"
	p.untilEvent("BindRefused", message)
	p.untilEvent("FailedScheduling", message)
	p.untilCounted(policy.Name, "rejected")
	ml := "ml-" + p.ns
	require.NoError(p.t, cluster.CreateNodes(p.t.Context(), p.bench.client, cluster.Node(ml, cluster.WithLabels(map[string]string{"pool": "ml", p.label(): "yes"}))))
	assert.Equal(p.t, ml, p.untilBound().Spec.NodeName)
}

// rackAwareness is the recipe for racks in docs/policy-recipes.md.
const rackAwareness = "../../config/policies/rack-awareness"

// apply applies the file until the end of the test.
func (p *policies) apply(file string) {
	p.kubectl("apply", "-f", file)
	p.t.Cleanup(func() { _ = p.cluster.Kubectl(context.WithoutCancel(p.t.Context()), "delete", "-f", file).Run() })
}

// applyRackAwareness applies the policy, and waits until each replica has it.
func (p *policies) applyRackAwareness() {
	p.apply(filepath.Join(rackAwareness, "policy.yaml"))
	p.probing(gen.Label("rack-awareness", "true"))
	p.untilFound("rack-awareness")
}

// The container of a broker like Strimzi's reads the rack of its node. Strimzi's own templates cannot read annotations. The policy
// rack-awareness is in force.
func testPolicyStrimzi(p *policies) {
	p.needs(p.t, mutatingPolicies)
	p.apply(filepath.Join(rackAwareness, "strimzi.yaml"))
	node, toleration := p.ownNode("strimzi")
	broker := gen.Pod("pod", gen.InNamespace(p.ns), gen.Scheduler(cluster.DefaultScheduler), gen.EndsAtOnce(), toleration, p.steered(),
		gen.Label("rack-awareness", "true"), gen.Label("strimzi.io/kind", "Kafka"))
	broker.Spec.Containers[0].Name = "kafka"
	broker.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "KAFKA_METRICS_ENABLED", Value: "false"}}
	// The API server applies a new policy after a moment.
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		pod, err := p.bench.client.CoreV1().Pods(p.ns).Create(p.t.Context(), broker, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.NoError(c, err)
		assert.Len(c, pod.Spec.Containers[0].Env, 2)
	}, patience, 50*time.Millisecond, "the API server should add the variable")

	_, err := p.bench.client.CoreV1().Pods(p.ns).Create(p.t.Context(), broker, metav1.CreateOptions{})
	require.NoError(p.t, err)
	read, err := downward(p.untilBound())
	require.NoError(p.t, err)
	rack := p.node(node).Labels[cluster.RackLabel]
	require.NotEmpty(p.t, rack)
	assert.Equal(p.t, map[string]string{"env RACK": rack}, read)
}

// A bind waits until a CSI driver is registered on the node, and continues within a moment.
func testPolicyWaits(p *policies) {
	p.grant(storagev1.GroupName, "csinodes")
	policy := p.add("waits", `
resources: [{name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}]
waitFor:
- name: driver
  expression: "resources.csinode != null && resources.csinode.spec.drivers.exists(d, d.name == '`+csiDriver+`')"
  messageExpression: "'CSI driver not registered on ' + node.metadata.name"
`)
	node, toleration := p.ownNode("late")
	p.begin(cluster.DefaultScheduler, node, toleration)
	p.untilEvent("WaitingForPreBind", "policy: BindPolicy "+policy.Name+": waiting for driver: CSI driver not registered on "+node)
	p.assertNotBound()
	p.registerDriver(node)
	began := time.Now()
	p.assertTopology(p.untilBound())
	assert.Less(p.t, time.Since(began), aMoment)
	p.assertNeverFailed()
	p.untilCounted(policy.Name, "waiting")
	p.untilCounted(policy.Name, "allowed")
}

// For a constant namespace, a Role there is enough.
func testPolicyReadsWithRole(p *policies) {
	rbac, meta := p.bench.client.RbacV1(), metav1.ObjectMeta{Name: "states"}
	_, err := rbac.Roles(p.ns).Create(p.t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	_, err = rbac.RoleBindings(p.ns).Create(p.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "prebind-system", Name: "prebind"}},
	}, metav1.CreateOptions{})
	require.NoError(p.t, err)
	p.add("states", `
resources: [{name: state, apiVersion: v1, kind: ConfigMap, namespace: `+p.ns+`, nameExpression: node.metadata.name}]
waitFor: [{name: ready, expression: "resources.?state.?data[?'state'].orValue('') == 'ready'"}]
`)
	node, toleration := p.ownNode("state")
	p.begin(cluster.DefaultScheduler, node, toleration)
	p.untilEvent("WaitingForPreBind", "waiting for ready")
	state := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: node}, Data: map[string]string{"state": "ready"}}
	_, err = p.bench.client.CoreV1().ConfigMaps(p.ns).Create(p.t.Context(), state, metav1.CreateOptions{})
	require.NoError(p.t, err)
	p.untilBound()
}

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
