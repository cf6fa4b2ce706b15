// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

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
