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
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/cluster"
)

// The variants with the plugin policy, by the BindPolicies of the cluster. They share a process and a namespace. The variant
// prebind runs without the plugin, as without the CustomResourceDefinition.
const (
	policies          = "policies"           // no BindPolicy
	policiesUnmatched = "policies-unmatched" // 200 BindPolicies that do not match
	policiesMatching  = "policies-matching"  // five BindPolicies that match
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
}

// newPolicyBench starts the control plane. It grants Prebind the kinds that the policies read.
func newPolicyBench(tb testing.TB, nodes int) *policyBench {
	tb.Helper()
	p := &policyBench{}
	p.rivals = newRivals(tb, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}, cluster.Nodes("node", nodes), shipped{
		components: []string{"plugins/policy"}, args: []string{"--prebind-plugins=*,-policy"}, second: []string{"--prebind-plugins=*"}, secondVariant: policies,
	}, none, constant, prebind, policies)
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
	require.NoError(tb, cluster.WaitForPods(tb.Context(), p.client, constant, prebind, policies))
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
	if variant == none || variant == constant || variant == prebind {
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
// change to the bind, and the memory of 200 BindPolicies.
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
	require.NoError(b, p.weigh(b.Context(), out))
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
		out.add(policies, round, "wake p50", quantile(took, 0.5))
		out.add(policies, round, "wake worst", quantile(took, 1))
		return p.clear(ctx, policies)
	})
}

// weigh measures the memory of a replica without the plugin, and with 200 policies that read one of 10,000 CSINodes.
func (p *policyBench) weigh(ctx context.Context, out *results) error {
	err := inParallel(ctx, 32, 10000, func(ctx context.Context, i int) error {
		_, err := p.client.StorageV1().CSINodes().Create(ctx, csiNode(fmt.Sprintf("weighed-%d", i)), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	for i, variant := range []string{prebind, policiesUnmatched} {
		all, err := policiesOf(variant)
		if err != nil {
			return err
		}
		weigh := func(ctx context.Context) error {
			if err := cluster.Pause(ctx, 2*time.Second); err != nil {
				return err
			}
			metrics, err := p.prebind.Replicas()[i].Metrics(ctx)
			// The live heap of the last garbage collection: Prebind lets the heap grow to three times its size.
			out.add(variant, 0, "live heap MiB", sum(metrics, "go_memstats_next_gc_bytes", "")/3/(1<<20))
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
