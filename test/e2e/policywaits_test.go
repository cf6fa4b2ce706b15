// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// policyWait is a policy that delays binds until an event.
type policyWait struct {
	spec, scheduler string
	// prepare runs before the policy is created.
	prepare func(p *policies)
	// says returns the message of the wait.
	says func(node string) string
	// event ends the wait.
	event func(p *policies, node string)
}

// policyWaits returns waits for objects of each kind.
func policyWaits() map[string]policyWait {
	return map[string]policyWait{
		"CSI driver": {
			spec:      waitForDriver,
			scheduler: cluster.DefaultScheduler,
			prepare:   func(p *policies) { p.grant(storagev1.GroupName, "csinodes") },
			says:      func(node string) string { return "driver: CSI driver not registered on " + node },
			event:     func(p *policies, node string) { p.registerDriver(node) },
		},
		"pod of a DaemonSet on the node": {
			scheduler: byHand,
			spec: `
resources: [{name: agents, apiVersion: v1, kind: Pod, labelSelector: {matchLabels: {app: agent}}, onNode: true}]
waitFor:
- name: agent
  expression: "resources.agents.exists(a, a.metadata.namespace == pod.metadata.namespace && a.status.?conditions.orValue([]).exists(c, c.type == 'Ready' && c.status == 'True'))"
  messageExpression: "string(resources.agents.size()) + ' agents, and none is Ready'"
`,
			prepare: func(p *policies) {
				p.grant("", "pods")
				p.createDaemonSet(p.t, p.ns, "agent", map[string]string{p.label(): "yes"})
			},
			says:  func(string) string { return "agent: 1 agents, and none is Ready" },
			event: func(p *policies, node string) { p.setReady("agent", node) },
		},
		"custom resource by name": {
			scheduler: byHand,
			spec: `
resources: [{name: agent, apiVersion: GROUP/v1, kind: Agent, nameExpression: node.metadata.name}]
waitFor:
- {name: agent, expression: "resources.agent != null && resources.agent.?status.ready.orValue(false)", messageExpression: "resources.agent == null ? 'no agent' : 'agent ' + resources.agent.spec.role + ' is not ready'"}
`,
			prepare: func(p *policies) { p.createKind() },
			says:    func(string) string { return "agent: agent gpu is not ready" },
			event:   func(p *policies, node string) { p.setAgentReady(node) },
		},
	}
}

// run checks that a bind waits for the event, and continues within a moment.
func (c policyWait) run(p *policies) {
	c.prepare(p)
	policy := p.add("waits", strings.ReplaceAll(c.spec, "GROUP", p.group()))
	node, toleration := p.ownNode("late")
	if strings.Contains(c.spec, "GROUP") {
		p.createAgent(node)
	}
	if strings.Contains(c.spec, "app: agent") {
		p.untilDaemonBound("agent", node)
	}
	bound := p.begin(c.scheduler, node, toleration)
	p.untilEvent("WaitingForPreBind", "policy: BindPolicy "+policy.Name+": waiting for "+c.says(node))
	assert.Empty(p.t, p.until("still unbound", notBound).Spec.NodeName)
	c.event(p, node)
	p.assertTopology(p.endSoon(bound))
	p.untilCounted(policy.Name, "enforce", "waiting")
	p.untilCounted(policy.Name, "enforce", "allowed")
}

// setReady reports that the pod with the label app on the node is Ready, like its kubelet.
func (p *policies) setReady(app, node string) {
	p.t.Helper()
	pods := p.bench.client.CoreV1().Pods(p.ns)
	list, err := pods.List(p.t.Context(), metav1.ListOptions{LabelSelector: "app=" + app, FieldSelector: "spec.nodeName=" + node})
	require.NoError(p.t, err)
	require.NotEmpty(p.t, list.Items)
	_, err = pods.Patch(p.t.Context(), list.Items[0].Name, types.StrategicMergePatchType,
		[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
	require.NoError(p.t, err)
}

// group is an API group of this test.
func (p *policies) group() string { return p.ns + ".example.com" }

// kind is the CustomResourceDefinition of a kind. %[1]s is its group.
const kind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: agents.%[1]s}
spec:
  group: %[1]s
  scope: Cluster
  names: {plural: agents, singular: agent, kind: Agent, listKind: AgentList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {nodeName: {type: string}, role: {type: string}}}
          status: {type: object, properties: {ready: {type: boolean}}}
`

// createKind creates the kind Agent in the group of the test, and grants it to Prebind.
func (p *policies) createKind() {
	p.t.Helper()
	p.installKind()
	p.grant(p.group(), "agents")
}

// installKind creates the kind Agent in the group of the test.
func (p *policies) installKind() {
	p.t.Helper()
	crd := &unstructured.Unstructured{}
	require.NoError(p.t, yaml.Unmarshal(fmt.Appendf(nil, kind, p.group()), &crd.Object))
	require.NoError(p.t, p.client.Create(p.t.Context(), crd))
	p.t.Cleanup(func() {
		assert.NoError(p.t, p.client.Delete(context.WithoutCancel(p.t.Context()), crd))
	})
}

// agent returns the Agent of the node.
func (p *policies) agent(node string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": p.group() + "/v1", "kind": "Agent",
		"metadata": map[string]any{"name": node, "labels": map[string]any{"tier": "1"}},
		"spec":     map[string]any{"nodeName": node, "role": "gpu"},
	}}
}

// createAgent creates the Agent of the node when the API server serves the kind.
func (p *policies) createAgent(node string) {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		err := p.client.Create(p.t.Context(), p.agent(node))
		if meta.IsNoMatchError(err) {
			assert.NoError(c, err)
			return
		}
		require.NoError(c, err)
	}, patience, again, "the API server should serve the kind")
}

// setAgentReady sets the status of the Agent.
func (p *policies) setAgentReady(node string) {
	p.t.Helper()
	require.NoError(p.t, p.client.Patch(p.t.Context(), p.agent(node), client.RawPatch(types.MergePatchType, []byte(`{"status":{"ready":true}}`))))
}

// crowd contains pods of one test that wait together, half of them for kube-scheduler.
type crowd struct {
	*policies
	errs map[string]<-chan error
}

// newCrowd creates the pods and waits until every bind waits. The pods have the label side=left or side=right in turn.
func newCrowd(p *policies, n int) *crowd {
	p.t.Helper()
	c := &crowd{policies: p, errs: map[string]<-chan error{}}
	node, toleration := p.ownNode("crowd")
	for i := range n {
		name, scheduler := fmt.Sprintf("pod-%d", i), cluster.DefaultScheduler
		if i >= n/2 {
			scheduler = byHand
		}
		side := "left"
		if i%2 == 1 {
			side = "right"
		}
		pod, err := p.createPod(name, scheduler, toleration, p.steered(), gen.Label("side", side))
		require.NoError(p.t, err)
		if scheduler == byHand {
			done := make(chan error, 1)
			go func() { done <- p.bindByHand(gen.Binding(pod, node)) }()
			c.errs[name] = done
		}
	}
	for i := range n {
		name := fmt.Sprintf("pod-%d", i)
		require.EventuallyWithT(p.t, func(t *assert.CollectT) {
			assert.True(t, says(p.listEvents("involvedObject.name="+name), "WaitingForPreBind"), "%q", p.allEvents())
		}, patience, again, "%s should wait", name)
	}
	return c
}

// end waits until the binds of all pods have ended, and returns the pods by name and the errors of the clients.
func (c *crowd) end(ended func(pod *corev1.Pod) bool) (map[string]*corev1.Pod, map[string]error) {
	c.t.Helper()
	began := time.Now()
	pods := map[string]*corev1.Pod{}
	require.EventuallyWithT(c.t, func(t *assert.CollectT) {
		list, err := c.bench.client.CoreV1().Pods(c.ns).List(c.t.Context(), metav1.ListOptions{LabelSelector: "side"})
		require.NoError(t, err)
		for i := range list.Items {
			pod := &list.Items[i]
			pods[pod.Name] = pod
			assert.True(t, ended(pod), pod.Name)
		}
	}, patience, again/5, "all binds should end")
	took := time.Since(began)
	assert.Less(c.t, took, aMoment)
	c.t.Logf("all binds ended after %s", took.Round(time.Millisecond))
	errs := map[string]error{}
	for name, done := range c.errs {
		errs[name] = c.policies.end(done)
	}
	return pods, errs
}

// 20 binds that wait for a policy continue by its new generation: those that it rejects end, and the others get its annotation.
func testPolicyChangedWhileWaiting(p *policies) {
	policy := p.add("waits", `waitFor: [{name: never, expression: "false", message: nothing}]`)
	c := newCrowd(p, 20)
	p.update(policy, func(s *v1alpha1.BindPolicySpec) {
		changed := parsePolicy(p.t, "", `
validations: [{expression: "pod.metadata.labels['side'] == 'left'", message: "the wrong side"}]
mutations: {annotations: [{key: generation, valueExpression: "'2'"}]}
`).Spec
		s.WaitFor, s.Validations, s.Mutations = nil, changed.Validations, changed.Mutations
	})
	refusedRight := func(pod *corev1.Pod) bool {
		return pod.Labels["side"] == "left" && pod.Spec.NodeName != "" ||
			says(p.listEvents("involvedObject.name="+pod.Name), "BindRefused", "BindPolicy "+policy.Name+": the wrong side")
	}
	pods, errs := c.end(refusedRight)
	for name, pod := range pods {
		if pod.Labels["side"] == "left" {
			assert.Equal(p.t, "2", pod.Annotations[key(policy, "generation")])
			assert.NoError(p.t, errs[name])
			continue
		}
		assert.Empty(p.t, pod.Spec.NodeName)
		if c.errs[name] != nil {
			assert.ErrorContains(p.t, errs[name], "the wrong side")
		}
	}
}

// 20 binds that wait for a policy continue when it is deleted.
func testPolicyDeletedWhilePodsWait(p *policies) {
	policy := p.add("waits", `{waitFor: [{name: never, expression: "false", message: nothing}], mutations: {annotations: [{key: a, valueExpression: "'a'"}]}}`)
	c := newCrowd(p, 20)
	require.NoError(p.t, p.client.Delete(p.t.Context(), policy))
	pods, errs := c.end(func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	for name, pod := range pods {
		assert.NotContains(p.t, pod.Annotations, key(policy, "a"))
		assert.NoError(p.t, errs[name])
	}
	assert.Empty(p.t, p.failures())
}

// A policy names a kind that is installed later, and that Prebind may watch even later. Its status shows what is missing. It
// is in force without a restart.
func testPolicyKindLater(p *policies) {
	policy := p.post(p.forNamespace(parsePolicy(p.t, p.ns, strings.ReplaceAll(policyWaits()["custom resource by name"].spec, "GROUP", p.group()))))
	ready := p.untilReady(policy, metav1.ConditionFalse)
	assert.Equal(p.t, v1alpha1.ReasonUnknownKind, ready.Reason)
	for _, words := range []string{"spec.resources[agent]", p.group(), "failurePolicy Fail"} {
		assert.Contains(p.t, ready.Message, words)
	}
	p.installKind()
	p.untilReason(policy, v1alpha1.ReasonForbidden, `{apiGroups: ["`+p.group()+`"], resources: [agents], verbs: [get, list, watch]}`, "rbac.prebind.dev/aggregate-to-policy")
	p.grant(p.group(), "agents")
	p.untilReason(policy, v1alpha1.ReasonInForce)
	p.untilFound(policy.Name, "waiting: no agent")
	late := &policies{bench: newBench(p.t, p.world, nil), client: p.client}
	p.update(policy, func(s *v1alpha1.BindPolicySpec) {
		s.MatchConstraints.NamespaceSelector = nil
		s.MatchConstraints.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"late": p.ns}}
	})
	p.untilReady(policy, metav1.ConditionTrue)
	node, toleration := late.ownNode("late")
	late.probing(gen.Label("late", p.ns))
	late.untilFound(policy.Name, "waiting: no agent")
	bound := late.begin(byHand, node, toleration, gen.Label("late", p.ns))
	late.untilEvent("WaitingForPreBind", "no agent")
	p.createAgent(node)
	p.setAgentReady(node)
	late.endSoon(bound)
}

// untilReason waits until the condition Ready has the reason, and a message that contains the words.
func (p *policies) untilReason(policy *v1alpha1.BindPolicy, reason string, words ...string) {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		require.NoError(c, p.client.Get(p.t.Context(), client.ObjectKeyFromObject(policy), policy))
		ready := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionReady)
		require.NotNil(c, ready)
		assert.Equal(c, reason, ready.Reason, ready.Message)
		for _, w := range words {
			assert.Contains(c, ready.Message, w)
		}
	}, patience, again)
}
