// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy/v1alpha1"
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
