// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	bound := p.begin(cluster.DefaultScheduler, node, toleration)
	p.untilEvent("WaitingForPreBind", "policy: BindPolicy "+policy.Name+": waiting for driver: CSI driver not registered on "+node)
	assert.Empty(p.t, p.until("still unbound", notBound).Spec.NodeName)
	p.registerDriver(node)
	p.assertTopology(p.endSoon(bound))
	p.untilCounted(policy.Name, "enforce", "waiting")
	p.untilCounted(policy.Name, "enforce", "allowed")
}

// waitForAgent waits for the Agent of the node.
const waitForAgent = `
resources: [{name: agent, apiVersion: GROUP/v1, kind: Agent, nameExpression: node.metadata.name}]
waitFor:
- {name: agent, expression: "resources.agent != null && resources.agent.?status.ready.orValue(false)", messageExpression: "resources.agent == null ? 'no agent' : 'agent ' + resources.agent.spec.role + ' is not ready'"}
`

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

// A policy names a kind that is installed later, and that Prebind may watch even later. Its status shows what is missing. It
// is in force without a restart.
func testPolicyKindLater(p *policies) {
	policy := p.post(p.forNamespace(parsePolicy(p.t, p.ns, strings.ReplaceAll(waitForAgent, "GROUP", p.group()))))
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
