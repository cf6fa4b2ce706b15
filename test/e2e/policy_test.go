// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/gen"
)

// policies creates BindPolicies as an administrator.
type policies struct {
	*bench
	client client.Client
}

// TestPolicy has its own installation, because the plugin is not part of the shipped default.
func TestPolicy(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, 0)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "plugins/policy"))
	for range 2 {
		_, err := w.start(t.Context())
		require.NoError(t, err)
	}
	for name, test := range map[string]func(*policies){
		"annotate": testPolicyAnnotates, "reject": testPolicyRejects, "wait": testPolicyWaits, "broken generation": testPolicyBrokenGeneration,
		"deleted while a pod waits": testPolicyDeletedWhileWaiting, "missing permission": testPolicyMissingPermission,
		"custom kind": testPolicyCustomKind,
	} {
		// The tests run one after another, because each counts the policies of the replicas.
		t.Run(name, func(t *testing.T) { test(newPolicies(t, w)) })
	}
}

func newPolicies(t *testing.T, w *world) *policies {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	c, err := client.New(w.cluster.Config(), client.Options{Scheme: scheme})
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

// withoutValidation removes the webhook that validates policies, as an operator could, while do runs.
func (p *policies) withoutValidation(do func()) {
	p.t.Helper()
	kubectl := func(verb string) {
		out, err := p.cluster.Kubectl(p.t.Context(), verb, "-f", policyComponent+"webhook.yaml").CombinedOutput()
		require.NoError(p.t, err, "%s", out)
	}
	kubectl("delete")
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		policy := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}, Spec: v1alpha1.BindPolicySpec{Validations: []v1alpha1.Validation{{Expression: "nothing"}}}}
		assert.NoError(c, p.client.Create(p.t.Context(), policy, client.DryRunAll))
	}, patience, 50*time.Millisecond)
	do()
	kubectl("apply")
	p.untilValidated()
}

// create creates a policy for the namespace of the test with the spec in YAML, and waits until all replicas apply it.
func (p *policies) create(spec string) *v1alpha1.BindPolicy {
	p.t.Helper()
	policy := p.createOnly(spec)
	p.untilReady(policy, metav1.ConditionTrue)
	p.untilMetric(p.t, `prebind_policies{state="in_force"} 1`)
	return policy
}

// createOnly creates the policy, and deletes it after the test.
func (p *policies) createOnly(spec string) *v1alpha1.BindPolicy {
	p.t.Helper()
	policy := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.ns}}
	require.NoError(p.t, yaml.UnmarshalStrict([]byte(spec), &policy.Spec), "%s", spec)
	policy.Spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": p.ns}}
	require.NoError(p.t, p.client.Create(p.t.Context(), policy))
	p.t.Cleanup(func() {
		require.NoError(p.t, client.IgnoreNotFound(p.client.Delete(context.WithoutCancel(p.t.Context()), policy)))
	})
	return policy
}

// untilReady waits until the condition Ready of the latest generation has the status, and returns the condition.
func (p *policies) untilReady(policy *v1alpha1.BindPolicy, status metav1.ConditionStatus) *metav1.Condition {
	p.t.Helper()
	var ready *metav1.Condition
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		require.NoError(c, p.client.Get(p.t.Context(), client.ObjectKeyFromObject(policy), policy))
		ready = meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionReady)
		require.NotNil(c, ready)
		assert.Equal(c, status, ready.Status, ready.Message)
		assert.Equal(c, policy.Generation, policy.Status.ObservedGeneration)
	}, patience, 50*time.Millisecond, "the policy should be Ready=%s", status)
	return ready
}

func testPolicyAnnotates(p *policies) {
	p.create(`
mutations:
  annotations:
  - {key: zone, valueExpression: "node.metadata.labels['topology.kubernetes.io/zone']"}
  - {key: nothing, valueExpression: "null"}
  labels: [{key: user, valueExpression: "'bound-by-' + pod.spec.schedulerName"}]
`)
	p.pod(byHand)
	require.NoError(p.t, p.bindByHand(p.binding("node-1")))
	pod := p.untilBound()
	p.assertTopology(pod)
	prefix := p.ns + ".policy.prebind.dev/"
	assert.Equal(p.t, pod.Annotations["topology.prebind.dev/zone"], pod.Annotations[prefix+"zone"])
	assert.NotContains(p.t, pod.Annotations, prefix+"nothing")
	p.assertCopied(p.t, pod, prefix+"user", "bound-by-"+byHand)
}

func testPolicyRejects(p *policies) {
	p.create(`
variables: [{name: pool, expression: "node.metadata.labels[?'pool'].orValue('')"}]
validations: [{expression: "variables.pool == 'ml'", messageExpression: "'node ' + node.metadata.name + ' has the pool ' + variables.pool"}]
`)
	node, toleration := p.ownNode("pool")
	p.podWith(byHand, toleration)
	p.patchNode(node, `{"metadata":{"labels":{"pool":"web"}}}`)
	p.assertRefused(p.bindByHand(p.binding(node)), "policy: BindPolicy "+p.ns+": node "+node+" has the pool web; choose another node, or see spec.validations[0] of the policy")
	x, _ := p.explain(node)
	assert.Equal(p.t, "refuses", string(x.plugin("policy").Verdict))
	p.patchNode(node, `{"metadata":{"labels":{"pool":"ml"}}}`)
	require.NoError(p.t, p.bindByHand(p.binding(node)))
}

// waitForDriver waits for a CSI driver on the node.
const waitForDriver = `
resources: [{name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}]
waitFor:
- name: driver
  expression: "resources.csinode != null && resources.csinode.spec.drivers.exists(d, d.name == '` + csiDriver + `')"
  messageExpression: "'CSI driver not registered on ' + node.metadata.name"
`

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

func testPolicyWaits(p *policies) {
	p.grant(storagev1.GroupName, "csinodes")
	p.create(waitForDriver)
	node, toleration := p.ownNode("late")
	p.podWith(byHand, toleration)
	bound := p.beginBind(node)
	p.untilEvent("WaitingForPreBind", "policy: BindPolicy "+p.ns+": waiting for driver: CSI driver not registered on "+node)
	assert.Empty(p.t, p.until("still unbound", notBound).Spec.NodeName)
	p.registerDriver(node)
	began := time.Now()
	p.untilBound()
	assert.Less(p.t, time.Since(began), aMoment)
	require.NoError(p.t, p.end(bound))
}

// A generation that does not compile follows its failure policy.
// The API server rejects a generation that does not compile. One that entered anyway follows the failure policy.
func testPolicyBrokenGeneration(p *policies) {
	policy := p.create(`validations: [{expression: "true", message: "the first generation"}]`)
	policy.Spec.Validations[0].Expression = "node.metadata.nmae == 'a'"
	manifest := p.manifest(policy)
	out, err := p.cluster.Kubectl(p.t.Context(), "apply", "--server-side", "--force-conflicts", "-f", manifest).CombinedOutput()
	require.Error(p.t, err)
	assert.Contains(p.t, string(out), "spec.validations[0].expression: Invalid value: line 1, column 14: undefined field 'nmae'")
	require.Error(p.t, p.client.Update(p.t.Context(), policy))
	p.withoutValidation(func() { require.NoError(p.t, p.client.Update(p.t.Context(), policy)) })
	ready := p.untilReady(policy, metav1.ConditionFalse)
	assert.Equal(p.t, v1alpha1.ReasonCompileError, ready.Reason)
	assert.Contains(p.t, ready.Message, "spec.validations[0].expression")
	p.untilMetric(p.t, `prebind_policies{state="not_ready"} 1`)
	p.pod(byHand)
	p.assertRefused(p.bindByHand(p.binding("node-1")), "BindPolicy "+policy.Name+": spec.validations[0].expression")

	policy.Spec.Validations[0].Expression = "node.metadata.name == 'node-1'"
	require.NoError(p.t, p.client.Update(p.t.Context(), policy))
	assert.Equal(p.t, v1alpha1.ReasonInForce, p.untilReady(policy, metav1.ConditionTrue).Reason)
	p.untilMetric(p.t, `prebind_policies{state="in_force"} 1`)
	require.NoError(p.t, p.bindByHand(p.binding("node-1")))
}

// manifest writes the name and the spec of the policy to a file.
func (p *policies) manifest(policy *v1alpha1.BindPolicy) string {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "policy.yaml")
	content, err := yaml.Marshal(&v1alpha1.BindPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind.Kind}, ObjectMeta: metav1.ObjectMeta{Name: policy.Name}, Spec: policy.Spec,
	})
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(file, content, 0o600))
	return file
}

func testPolicyDeletedWhileWaiting(p *policies) {
	policy := p.create(`waitFor: [{name: never, expression: "false", message: "nothing"}]`)
	p.pod(byHand)
	bound := p.beginBind("node-1")
	p.untilEvent("WaitingForPreBind", "waiting for never: nothing")
	require.NoError(p.t, p.client.Delete(p.t.Context(), policy))
	began := time.Now()
	p.untilBound()
	assert.Less(p.t, time.Since(began), aMoment)
	require.NoError(p.t, p.end(bound))
}

// The status names the missing rule. With the rule, the policy is in force.
func testPolicyMissingPermission(p *policies) {
	policy := p.createOnly(`
resources: [{name: leases, apiVersion: coordination.k8s.io/v1, kind: Lease, namespace: kube-node-lease, nameExpression: node.metadata.name}]
validations: [{expression: "resources.leases == null", message: "the node has a lease"}]
`)
	ready := p.untilReady(policy, metav1.ConditionFalse)
	assert.Equal(p.t, v1alpha1.ReasonForbidden, ready.Reason)
	assert.Contains(p.t, ready.Message, `apply a ClusterRole with the label rbac.prebind.dev/aggregate-to-policy: "true" and the rule {apiGroups: ["coordination.k8s.io"], resources: [leases], verbs: [get, list, watch]}`)
	assert.Contains(p.t, ready.Message, "failurePolicy Fail")
	p.grant("coordination.k8s.io", "leases")
	p.untilReady(policy, metav1.ConditionTrue)
	p.untilMetric(p.t, `prebind_policies{state="in_force"} 1`)
	p.podWith(byHand, gen.Annotation("example.com/test", "1"))
	require.NoError(p.t, p.bindByHand(p.binding("node-1")))
}

// racks is a kind of another project.
const racks = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: racks.e2e.prebind.dev}
spec:
  group: e2e.prebind.dev
  scope: Cluster
  names: {plural: racks, singular: rack, kind: Rack}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {closed: {type: boolean}}}
`

// apply applies a manifest, and deletes its objects after the test.
func (p *policies) apply(manifest string) {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "manifest.yaml")
	require.NoError(p.t, os.WriteFile(file, []byte(manifest), 0o600))
	out, err := p.cluster.Kubectl(p.t.Context(), "apply", "--server-side", "--force-conflicts", "-f", file).CombinedOutput()
	require.NoError(p.t, err, "%s", out)
	p.t.Cleanup(func() {
		_, _ = p.cluster.Kubectl(context.WithoutCancel(p.t.Context()), "delete", "--ignore-not-found", "-f", file).CombinedOutput()
	})
}

// A policy uses a kind that is installed later. The status warns of a field that the schema does not have.
func testPolicyCustomKind(p *policies) {
	policy := p.createOnly(`
resources: [{name: rack, apiVersion: e2e.prebind.dev/v1, kind: Rack, nameExpression: "'rack-1'"}]
validations:
- {expression: "resources.rack != null && !resources.rack.spec.closed", message: "the rack is closed"}
- {expression: "true || resources.rack.spec.clsed"}
`)
	ready := p.untilReady(policy, metav1.ConditionFalse)
	assert.Equal(p.t, v1alpha1.ReasonUnknownKind, ready.Reason)
	assert.Contains(p.t, ready.Message, "spec.resources[rack]: the API server does not serve the kind")
	p.grant("e2e.prebind.dev", "racks")
	p.apply(racks)
	p.untilReady(policy, metav1.ConditionTrue)
	p.untilMetric(p.t, `prebind_policies{state="in_force"} 1`)
	require.EventuallyWithT(p.t, func(c *assert.CollectT) {
		require.NoError(c, p.client.Get(p.t.Context(), client.ObjectKeyFromObject(policy), policy))
		require.NotNil(c, policy.Status.TypeChecking)
		require.Len(c, policy.Status.TypeChecking.ExpressionWarnings, 1)
		warning := policy.Status.TypeChecking.ExpressionWarnings[0]
		assert.Equal(c, "spec.validations[1].expression", warning.FieldRef)
		assert.Contains(c, warning.Warning, "undefined field 'clsed'")
	}, patience, 100*time.Millisecond)

	const rack = "{apiVersion: e2e.prebind.dev/v1, kind: Rack, metadata: {name: rack-1}, spec: {closed: %t}}"
	p.pod(byHand)
	p.assertRefused(p.bindByHand(p.binding("node-1")), "the rack is closed")
	p.apply(fmt.Sprintf(rack, true))
	p.assertRefused(p.bindByHand(p.binding("node-1")), "the rack is closed")
	p.apply(fmt.Sprintf(rack, false))
	require.NoError(p.t, p.bindByHand(p.binding("node-1")), "a cache that is behind rejects no bind")
	p.untilBound()
}
