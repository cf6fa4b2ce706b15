// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/cluster"
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
	p.untilCounted(policy.Name, "waiting")
	p.untilCounted(policy.Name, "allowed")
}

// agentKind is the CustomResourceDefinition of the kind Agent of a test. %[1]s is its group.
const agentKind = `
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
    schema: {openAPIV3Schema: {type: object}}
`

// A policy names a kind that is installed later, and that Prebind may watch even later. Its status shows what is missing. It
// is in force without a restart.
func testPolicyKindLater(p *policies) {
	group := p.ns + ".example.com"
	policy := p.post(p.forNamespace(parsePolicy(p.t, p.ns, `
resources: [{name: agent, apiVersion: `+group+`/v1, kind: Agent, nameExpression: node.metadata.name}]
waitFor: [{name: agent, expression: "resources.agent != null", message: no agent}]
`)))
	p.untilReason(policy, v1alpha1.ReasonUnknownKind, "spec.resources[agent]", group, "failurePolicy Fail")
	crd := fmt.Sprintf(agentKind, group)
	p.manifest("apply", crd)
	p.t.Cleanup(func() { p.manifest("delete", crd) })
	p.untilReason(policy, v1alpha1.ReasonForbidden, `{apiGroups: ["`+group+`"], resources: [agents], verbs: [get, list, watch]}`, "rbac.prebind.dev/aggregate-to-policy")
	p.grant(group, "agents")
	p.untilReason(policy, v1alpha1.ReasonInForce)
	p.untilFound(policy.Name, "waiting: no agent")
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
