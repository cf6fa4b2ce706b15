// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/bench/stat"
	"github.com/prebind/prebind/test/cluster"
)

// The variants with the plugin policy, by the BindPolicies of the cluster. They share a process and a namespace. The variant
// prebind runs without the plugin, as without the CustomResourceDefinition.
const (
	policies          = "policies"           // no BindPolicy
	policiesUnmatched = "policies-unmatched" // 200 BindPolicies that do not match
	policiesMatching  = "policies-matching"  // five BindPolicies that match
	// memoryOfPolicies is the variant with 200 BindPolicies that match, and 10,000 objects that they read.
	memoryOfPolicies = "policies-memory"
)

// sizes of the variants.
const (
	unmatched = 200
	matching  = 5
	// awaited is the number of binds that wait for a CSI driver. It is less than --max-holds.
	awaited = 30
)

// policyBench is a control plane with the variants.
type policyBench struct {
	*rivals
	policies client.Client
	debug    string
}

// newPolicyBench starts the control plane. It grants Prebind the kinds that the policies read.
func newPolicyBench(tb testing.TB, nodes int) *policyBench {
	tb.Helper()
	p := &policyBench{}
	// Only one replica runs at a time, so both use the same address.
	args := func(plugins string) func(*cluster.Cluster) ([]string, error) {
		return func(c *cluster.Cluster) (args []string, err error) {
			if p.debug == "" {
				p.debug, err = c.ReserveAddress(tb.Context())
			}
			return []string{"--prebind-plugins=" + plugins, "--debug-bind-address=" + p.debug}, err
		}
	}
	p.rivals = newRivalsWith(tb, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}, cluster.Nodes("node", nodes), shipped{
		components: []string{"plugins/policy"}, args: args("*,-policy"), second: args("*"), secondVariant: policies,
	}, constant, prebind, policies)
	p.targets = nodes
	scheme := runtime.NewScheme()
	require.NoError(tb, v1alpha1.AddToScheme(scheme))
	var err error
	p.policies, err = client.New(p.cluster.Config(), client.Options{Scheme: scheme})
	require.NoError(tb, err)
	// The policies are created before the leader copies the CA bundle of this webhook.
	require.NoError(tb, p.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(tb.Context(), "prebind-policy", metav1.DeleteOptions{}))
	_, err = p.client.RbacV1().ClusterRoles().Create(tb.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "bench", Labels: map[string]string{"rbac.prebind.dev/aggregate-to-policy": "true"}},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{storagev1.GroupName}, Resources: []string{"csinodes"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{"bench.example.com"}, Resources: []string{"agents"}, Verbs: []string{"get", "list", "watch"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(tb, err)
	for i := range nodes {
		_, err := p.client.StorageV1().CSINodes().Create(tb.Context(), &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i+1)},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "csi.example.com", NodeID: "1"}}},
		}, metav1.CreateOptions{})
		require.NoError(tb, err)
	}
	require.NoError(tb, p.untilAccounts(tb.Context(), constant, prebind, policies))
	return p
}

// policyOf returns a policy with the spec in YAML.
func policyOf(name, spec string) (*v1alpha1.BindPolicy, error) {
	policy := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return policy, yaml.UnmarshalStrict([]byte(spec), &policy.Spec)
}

// threeExpressions are a match condition, a validation of a watched object, and an annotation.
const threeExpressions = `
resources: [{name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}]
matchConditions: [{name: zone, expression: "'topology.kubernetes.io/zone' in node.metadata.labels"}]
validations: [{expression: "resources.csinode != null && resources.csinode.spec.drivers.exists(d, d.name == 'csi.example.com')", message: no driver}]
mutations: {annotations: [{key: zone, valueExpression: "node.metadata.labels['topology.kubernetes.io/zone'] + '/' + pod.metadata.namespace"}]}
`

// unmatchedBy are constraints that no pod of the benchmark matches.
var unmatchedBy = []string{
	`matchConstraints: {podSelector: {matchLabels: {team: "%d"}}}`,
	`matchConstraints: {nodeSelector: {matchExpressions: [{key: pool, operator: In, values: ["%d", other]}]}}`,
	`matchConstraints: {schedulerNames: ["scheduler-%d"]}`,
	`matchConstraints: {namespaceSelector: {matchLabels: {team: "%d"}}}`,
}

// policiesOf returns the policies of the variant.
func policiesOf(variant string) ([]*v1alpha1.BindPolicy, error) {
	var specs []string
	switch variant {
	case policiesUnmatched:
		for i := range unmatched {
			specs = append(specs, threeExpressions+fmt.Sprintf(unmatchedBy[i%len(unmatchedBy)], i))
		}
	case policiesMatching:
		for range matching {
			specs = append(specs, threeExpressions)
		}
	case memoryOfPolicies:
		for i := range unmatched {
			specs = append(specs, fmt.Sprintf(`
resources:
- {name: agent, apiVersion: bench.example.com/v1, kind: Agent, nameExpression: node.metadata.name}
- {name: config, apiVersion: v1, kind: ConfigMap, nameExpression: node.metadata.name, namespaceExpression: pod.metadata.namespace}
variables: [{name: tier, expression: "resources.agent == null ? 'none' : resources.agent.spec.tier"}]
validations: [{expression: "variables.tier != '%d'"}]
mutations: {annotations: [{key: tier, valueExpression: "resources.config == null ? variables.tier : resources.config.metadata.annotations[?'tier'].orValue('')"}]}
`, i))
		}
	}
	all := make([]*v1alpha1.BindPolicy, 0, len(specs))
	for i, spec := range specs {
		policy, err := policyOf(fmt.Sprintf("policy-%d", i), spec)
		if err != nil {
			return nil, err
		}
		all = append(all, policy)
	}
	return all, nil
}

// apply replaces the policies of the cluster with those of the variant.
func (p *policyBench) apply(ctx context.Context, all []*v1alpha1.BindPolicy) error {
	if err := p.policies.DeleteAllOf(ctx, &v1alpha1.BindPolicy{}); err != nil {
		return err
	}
	return inParallel(ctx, 8, len(all), func(ctx context.Context, i int) error { return p.policies.Create(ctx, all[i]) })
}

// inForce waits until the replica applies n policies.
func (p *policyBench) inForce(ctx context.Context, n int) error {
	replica, last := p.prebind.Replicas()[1], -1.0
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		metrics, err := replica.Metrics(ctx)
		last = sum(metrics, "prebind_policies", `state="in_force"`)
		return int(last) == n, err
	})
	if err != nil {
		return fmt.Errorf("%g policies are in force, want %d: %w", last, n, err)
	}
	return nil
}

// with runs do while the replica with the plugin runs with the policies of the variant.
func (p *policyBench) with(ctx context.Context, all []*v1alpha1.BindPolicy, do func(ctx context.Context) error) error {
	if err := p.apply(ctx, all); err != nil {
		return err
	}
	return p.turn(ctx, policies, func(ctx context.Context) error {
		if err := p.inForce(ctx, len(all)); err != nil {
			return err
		}
		return do(ctx)
	})
}

// round measures one variant once.
func (p *policyBench) round(ctx context.Context, out *results, variant string, round int, s size) error {
	if err := p.forgetLeases(ctx); err != nil {
		return err
	}
	if variant == constant || variant == prebind {
		return p.rivals.round(ctx, out, variant, round, s)
	}
	all, err := policiesOf(variant)
	if err != nil {
		return err
	}
	if err := p.apply(ctx, all); err != nil {
		return err
	}
	own := &results{}
	if err := p.rivals.round(ctx, own, policies, round, s); err != nil {
		return err
	}
	for _, sample := range own.samples {
		out.add(variant, sample.Round, sample.Metric, sample.Value)
	}
	return nil
}

// checkOne binds a pod, and checks that the policies in force are those of the variant.
func (p *policyBench) checkOne(ctx context.Context, variant string) error {
	all, err := policiesOf(variant)
	if err != nil {
		return err
	}
	return p.with(ctx, all, func(ctx context.Context) error {
		pods, err := p.create(ctx, policies, "check", 1)
		if err == nil {
			_, err = p.bindAll(ctx, 1, pods)
		}
		if err != nil {
			return err
		}
		pod, err := p.client.CoreV1().Pods(policies).Get(ctx, pods[0].Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got, want := 0, 0
		for key := range pod.Annotations {
			if strings.HasSuffix(key, ".policy.prebind.dev/zone") {
				got++
			}
		}
		if variant == policiesMatching {
			want = matching
		}
		if got != want {
			return fmt.Errorf("%s: the pod has annotations of %d policies, want %d", variant, got, want)
		}
		return p.clear(ctx, policies)
	})
}

// BenchmarkPolicies measures the latency of a bind, and its CPU time, without the plugin policy, and with it: without a
// BindPolicy, with 200 BindPolicies that do not match, and with five that match. Then it measures the delay from an awaited
// change to the bind, and the memory of 200 BindPolicies that read 10,000 objects.
func BenchmarkPolicies(b *testing.B) {
	p := newPolicyBench(b, 30)
	variants := []string{constant, prebind, policies, policiesUnmatched, policiesMatching}
	for _, variant := range variants[2:] {
		require.NoError(b, p.checkOne(b.Context(), variant))
	}
	out, round := &results{name: "policies"}, 0
	for b.Loop() {
		for i := range variants {
			variant := variants[(i+round)%len(variants)] // A different variant begins each round.
			require.NoError(b, p.round(b.Context(), out, variant, round, size{warmUp: 100, alone: 400, together: 300, clients: 16}))
		}
		require.NoError(b, p.delay(b.Context(), out, round, awaited))
		require.NoError(b, out.save())
		round++
	}
	require.NoError(b, p.weigh(b.Context(), out, 5000, 2*time.Second))
	b.ReportMetric(0, "ns/op") // Creating pods takes most of the time.
	for _, metric := range []string{"p50", "p99", "binds/s", cpuOfWebhook, cpuOfAPIServer} {
		for _, variant := range variants[2:] {
			out.ratio(b, metric, variant, prebind)
		}
		out.ratio(b, metric, prebind, constant)
	}
	for _, metric := range []string{"wake p50", "wake worst"} {
		b.Logf("%s: %.1f ms", metric, stat.Median(stat.Values(out.samples, metric, policies)))
	}
	for _, metric := range memoryMetrics() {
		off := stat.Values(out.samples, metric, prebind)
		for _, variant := range []string{policiesUnmatched, memoryOfPolicies} {
			on := stat.Values(out.samples, metric, variant)
			b.Logf("%s: %.1f with %s, %.1f without the plugin, difference %.1f", metric, on[0], variant, off[0], on[0]-off[0])
		}
	}
	require.NoError(b, out.save())
}

// delay measures the time from the end of the request that changes an awaited CSINode to the end of the Binding, for n pods that
// wait at the same time.
func (p *policyBench) delay(ctx context.Context, out *results, round, n int) error {
	waits, err := policyOf("waits", `
resources: [{name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: "pod.metadata.name"}]
waitFor: [{name: driver, expression: "resources.csinode != null && resources.csinode.spec.drivers.exists(d, d.name == 'late.example.com')", message: no driver}]
`)
	if err != nil {
		return err
	}
	if err := p.forgetLeases(ctx); err != nil {
		return err
	}
	return p.with(ctx, []*v1alpha1.BindPolicy{waits}, func(ctx context.Context) error {
		pods, err := p.create(ctx, policies, fmt.Sprintf("wake-%d", round), n)
		if err != nil {
			return err
		}
		nodes := p.client.StorageV1().CSINodes()
		for _, pod := range pods {
			if _, err := nodes.Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}}, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		bound := make([]chan time.Time, n)
		for i, pod := range pods {
			bound[i] = make(chan time.Time, 1)
			go func() {
				if err := p.client.CoreV1().Pods(pod.Namespace).Bind(ctx, bindingOf(pod, i%p.targets), metav1.CreateOptions{}); err == nil {
					bound[i] <- time.Now()
				}
			}()
		}
		held, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := p.prebind.Replicas()[1].UntilHolds(held, n); err != nil {
			return err
		}
		took := make([]time.Duration, 0, n)
		for i, pod := range pods {
			_, err := nodes.Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"spec":{"drivers":[{"name":"late.example.com","nodeID":"1"}]}}`), metav1.PatchOptions{})
			if err != nil {
				return err
			}
			changed := time.Now()
			select {
			case at := <-bound[i]:
				took = append(took, at.Sub(changed))
			case <-time.After(patience):
				return fmt.Errorf("the pod %s is not bound", pod.Name)
			}
			if err := nodes.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
		out.add(policies, round, "wake p50", milliseconds(quantile(took, 0.5)))
		out.add(policies, round, "wake worst", milliseconds(quantile(took, 1)))
		return p.clear(ctx, policies)
	})
}

// agentKind is the CustomResourceDefinition of watched objects.
const agentKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: agents.bench.example.com}
spec:
  group: bench.example.com
  scope: Cluster
  names: {plural: agents, singular: agent, kind: Agent, listKind: AgentList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// weigh measures the memory of a replica without the plugin, with 200 policies, and with 200 policies that read n ConfigMaps and n
// custom resources.
func (p *policyBench) weigh(ctx context.Context, out *results, n int, settle time.Duration) error {
	if err := p.createAgents(ctx, n); err != nil {
		return err
	}
	for _, variant := range []string{prebind, policiesUnmatched, memoryOfPolicies} {
		all, err := policiesOf(variant)
		if err != nil {
			return err
		}
		replica := p.prebind.Replicas()[min(len(all), 1)]
		weigh := func(ctx context.Context) error {
			if err := pass(ctx, settle); err != nil {
				return err
			}
			resident, err := memory(replica.PID(), "VmRSS")
			if err != nil {
				return err
			}
			live, err := liveHeap(ctx, replica, p.debug)
			out.add(variant, 0, "resident MiB", resident/(1<<20))
			out.add(variant, 0, "live heap MiB", live/(1<<20))
			return err
		}
		if err := p.forgetLeases(ctx); err != nil {
			return err
		}
		if variant == prebind {
			err = p.turn(ctx, prebind, weigh)
		} else {
			err = p.with(ctx, all, weigh)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// createAgents creates n ConfigMaps and n custom resources of about 2 kB each.
func (p *policyBench) createAgents(ctx context.Context, n int) error {
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(agentKind), &crd.Object); err != nil {
		return err
	}
	if err := p.policies.Create(ctx, crd); err != nil {
		return err
	}
	agent := func(i int) *unstructured.Unstructured {
		status := map[string]any{}
		for j := range 20 {
			status[fmt.Sprintf("field%d", j)] = strings.Repeat("x", 80)
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "bench.example.com/v1", "kind": "Agent", "metadata": map[string]any{"name": fmt.Sprintf("agent-%d", i)},
			"spec": map[string]any{"tier": fmt.Sprint(i % 10)}, "status": status,
		}}
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return p.policies.Create(ctx, agent(n)) == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until the API server serves the kind: %w", err)
	}
	return inParallel(ctx, 16, n, func(ctx context.Context, i int) error {
		if err := p.policies.Create(ctx, agent(i)); err != nil {
			return err
		}
		_, err := p.client.CoreV1().ConfigMaps(policies).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("config-%d", i), Annotations: map[string]string{"tier": fmt.Sprint(i % 10)}},
			Data:       map[string]string{"data": strings.Repeat("x", 1600)},
		}, metav1.CreateOptions{})
		return err
	})
}
