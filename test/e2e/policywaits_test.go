// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
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
	p.assertNotBound()
	p.registerDriver(node)
	p.assertTopology(p.endSoon(bound))
	p.untilCounted(policy.Name, "waiting")
	p.untilCounted(policy.Name, "allowed")
}

// untilInForce waits until the condition Ready says that the policy is in force.
func (p *policies) untilInForce(name string) {
	p.t.Helper()
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		policy := &v1alpha1.BindPolicy{}
		require.NoError(c, p.client.Get(p.t.Context(), client.ObjectKey{Name: name}, policy))
		ready := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionReady)
		require.NotNil(c, ready)
		assert.Equal(c, v1alpha1.ReasonInForce, ready.Reason, ready.Message)
	}, patience, again)
}
