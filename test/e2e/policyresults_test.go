// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// A pod gets annotations and labels with the key of the policy, and with a prefix that the operator allows.
func testPolicyKeys(p *policies, scheduler string) {
	policy := p.add("keys", `
variables: [{name: zone, expression: "node.metadata.labels['topology.kubernetes.io/zone']"}]
mutations:
  annotations: [{key: zone, valueExpression: variables.zone}, {key: ray.io/zone, valueExpression: "'zone-' + variables.zone"}, {key: none, valueExpression: "null"}]
  labels: [{key: rack, valueExpression: "'in-' + pod.metadata.namespace"}, {key: ray.io/node, valueExpression: node.metadata.name}]
`)
	node, toleration := p.ownNode("keys")
	p.podWith(scheduler, toleration, p.steered(), gen.Annotation("ray.io/zone", "old"))
	if scheduler == byHand {
		require.NoError(p.t, p.bindByHand(p.binding(node)))
	}
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

// The API server rejects a policy with a key that the operator does not allow. The message shows how to allow the key.
func testPolicyKeyNotAllowed(p *policies) {
	err := p.client.Create(p.t.Context(), p.forNamespace(parsePolicy(p.t, p.ns, `
mutations: {annotations: [{key: allowed, valueExpression: "'a'"}, {key: volcano.sh/rack, valueExpression: "'r1'"}]}
`)))
	for _, words := range []string{"spec.mutations.annotations[1].key", "volcano.sh", "--policy-key-prefixes"} {
		require.ErrorContains(p.t, err, words)
	}
}

// rejectsPools rejects nodes that are not in the pool ml.
const rejectsPools = `
variables: [{name: pool, expression: "node.metadata.labels[?'pool'].orValue('none')"}]
validations:
- {expression: "variables.pool == 'ml'", messageExpression: "'pod ' + pod.metadata.name + ' needs the pool ml, and node ' + node.metadata.name + ' has ' + variables.pool"}
`

// A client gets the computed message with 403, an event of the pod contains it, and the metrics count it.
func testPolicyRejectsByHand(p *policies) {
	policy := p.add("pool", rejectsPools)
	p.pod(byHand)
	err := p.bindByHand(p.binding("node-1"))
	p.assertRefused(err, "policy: BindPolicy "+policy.Name+": pod pod needs the pool ml, and node node-1 has none")
	assert.Equal(p.t, []string{"refused"}, p.decisions())
	p.untilCounted(policy.Name, "enforce", "rejected")
}

// kube-scheduler gets the message, and chooses another node.
func testPolicyRejectsNode(p *policies) {
	policy := p.add("pool", rejectsPools)
	web, toleration := p.ownNode("web")
	p.prefersNot(web, toleration, p.steered())
	message := "policy: BindPolicy " + policy.Name + ": pod pod needs the pool ml, and node " + web + " has none"
	p.untilEvent("BindRefused", message)
	p.untilEvent("FailedScheduling", message)
	ml := "ml-" + p.ns
	require.NoError(p.t, cluster.CreateNodes(p.t.Context(), p.bench.client, cluster.Node(ml, cluster.WithLabels(map[string]string{"pool": "ml", p.label(): "yes"}))))
	assert.Equal(p.t, ml, p.untilBound().Spec.NodeName)
}

// A wait that times out rejects the bind, with the message of the wait.
func testPolicyTimeoutRefuses(p *policies, scheduler string) {
	policy := p.add("slow", `waitFor: [{name: never, expression: "false", messageExpression: "'nothing on ' + node.metadata.name", timeout: 2s}]`)
	node, toleration := p.ownNode("slow")
	began := time.Now()
	bound := p.begin(scheduler, node, toleration)
	says := []string{"policy: BindPolicy " + policy.Name, "nothing on " + node, "timed out after 2s", "spec.waitFor[never]"}
	if scheduler == byHand {
		p.assertRefused(p.end(bound), says...)
	} else {
		p.untilEvent(append(says, "FailedScheduling")...)
	}
	assert.GreaterOrEqual(p.t, time.Since(began), 2*time.Second)
	p.untilCounted(policy.Name, "enforce", "timed-out")
}

// A policy in mode Audit only reports: in an event, a warning and a metric.
func testPolicyAudit(p *policies, scheduler string) {
	rejects := p.add("rejects", `
mode: Audit
validations: [{expression: "false", message: "not in this pool"}]
mutations: {annotations: [{key: a, valueExpression: "'a'"}]}
`)
	waits := p.add("waits", `
mode: Audit
waitFor: [{name: driver, expression: "false", message: "no driver"}]
`)
	p.add("annotates", `{mode: Audit, mutations: {annotations: [{key: a, valueExpression: "'a'"}]}}`)
	node, toleration := p.ownNode("audited")
	warned := p.listen()
	pod := p.endSoon(p.begin(scheduler, node, toleration))
	for k := range pod.Annotations {
		assert.NotContains(p.t, k, "policy.prebind.dev")
	}
	rejected := "policy: BindPolicy " + rejects.Name + ": audit: the bind would be rejected: not in this pool"
	delayed := "policy: BindPolicy " + waits.Name + ": audit: the bind would wait for driver: no driver"
	p.untilEvent("BindPolicyAudited", rejected)
	p.untilEvent("BindPolicyAudited", delayed)
	if scheduler == byHand {
		assert.True(p.t, says(warned.all(), rejected), "%q", warned.all())
		assert.True(p.t, says(warned.all(), delayed), "%q", warned.all())
	}
	p.untilCounted(rejects.Name, "audit", "rejected")
	p.untilCounted(waits.Name, "audit", "waiting")
	assert.Equal(p.t, []string{"allowed"}, p.decisions())
}

// A policy that matches every pod cannot lock the cluster: it concerns neither exempt namespaces nor DaemonSets.
func testPolicyExempt(p *policies) {
	policy := p.post(parsePolicy(p.t, p.ns, `validations: [{expression: "false", message: "locked"}]`))
	p.untilReady(policy, metav1.ConditionTrue)
	p.untilFound(policy.Name, "locked")
	p.pod(byHand)
	p.assertRefused(p.bindByHand(p.binding("node-1")), "BindPolicy "+policy.Name+": locked")

	bound := func(namespace, scheduler string) {
		p.t.Helper()
		b := &bench{world: p.world, t: p.t, ns: namespace}
		made := gen.Pod("", gen.InNamespace(b.ns), gen.Scheduler(scheduler), gen.EndsAtOnce())
		made.GenerateName = "e2e-"
		// The namespace of Prebind enforces the Pod Security Standard restricted.
		made.Spec.SecurityContext = &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
		made.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}
		pod, err := b.client.CoreV1().Pods(b.ns).Create(p.t.Context(), made, metav1.CreateOptions{})
		require.NoError(p.t, err)
		if scheduler == byHand {
			require.NoError(p.t, b.bindByHand(gen.Binding(pod, "node-1")))
		}
		require.EventuallyWithT(p.t, func(c *assert.CollectT) {
			now, err := b.client.CoreV1().Pods(b.ns).Get(p.t.Context(), pod.Name, metav1.GetOptions{})
			require.NoError(c, err)
			assert.NotEmpty(c, now.Spec.NodeName)
		}, patience, again, "pods of %s should be bound", namespace)
	}
	for _, scheduler := range []string{byHand, cluster.DefaultScheduler} {
		bound("kube-system", scheduler)
		bound(install.Namespace, scheduler)
	}
	own := &policies{bench: newBench(p.t, p.world, map[string]string{"prebind.dev/exempt": ""}), client: p.client}
	own.pod(byHand)
	require.NoError(p.t, own.bindByHand(own.binding("node-1")), "a namespace that is exempt by its label")

	node, _ := p.ownNode("agents")
	p.createDaemonSet(p.t, p.ns, "agent", map[string]string{p.label(): "yes"})
	p.untilDaemonBound("agent", node)

	p.update(policy, func(s *v1alpha1.BindPolicySpec) { s.MatchConstraints.IncludeDaemonSetPods = true })
	p.untilReady(policy, metav1.ConditionTrue)
	second := "second-" + p.ns
	require.NoError(p.t, cluster.CreateNodes(p.t.Context(), p.bench.client, cluster.Node(second, cluster.WithLabels(map[string]string{p.label(): "yes"}))))
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		list, err := p.bench.client.CoreV1().Pods(p.ns).List(p.t.Context(), metav1.ListOptions{LabelSelector: "app=agent", FieldSelector: "spec.nodeName="})
		require.NoError(c, err)
		require.Len(c, list.Items, 1)
		assert.True(c, says(p.listEvents("involvedObject.name="+list.Items[0].Name), "BindRefused", "BindPolicy "+policy.Name+": locked"))
	}, patience, again, "includeDaemonSetPods should include the pod on the new node")
	require.NoError(p.t, p.client.Delete(p.t.Context(), policy))
	p.untilDaemonBound("agent", second)
	p.insist(p.t.Context(), p.binding("node-1"))
	p.untilBound()
}

// The status shows a broken generation.
func testPolicyReportedSoon(p *policies) {
	policy := p.add("good", `validations: [{expression: "false", message: "the good generation"}]`)
	var began time.Time
	p.withoutValidation(func() {
		p.update(policy, func(s *v1alpha1.BindPolicySpec) { s.Validations[0].Expression = "node.metadata.title == 'a'" })
		began = time.Now()
		p.untilReady(policy, metav1.ConditionFalse)
	})
	ready := p.untilReady(policy, metav1.ConditionFalse)
	p.t.Logf("reported after %s", time.Since(began).Round(time.Millisecond))
	assert.Equal(p.t, v1alpha1.ReasonCompileError, ready.Reason)
	for _, words := range []string{"spec.validations[0].expression", "title", "failurePolicy Fail"} {
		assert.Contains(p.t, ready.Message, words)
	}
	p.untilFound(policy.Name, "failed: spec.validations[0].expression")
	p.pod(byHand)
	p.assertRefused(p.bindByHand(p.binding("node-1")), "BindPolicy "+policy.Name+": spec.validations[0].expression")
	out, err := p.cluster.Kubectl(p.t.Context(), "get", "bp", policy.Name, "--no-headers").Output()
	require.NoError(p.t, err)
	for _, words := range []string{policy.Name, "False", v1alpha1.ReasonCompileError, "Enforce"} {
		assert.Contains(p.t, string(out), words)
	}
}
