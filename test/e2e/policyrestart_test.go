// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/prebind/prebind/policy/v1alpha1"
)

const (
	// otherPolicies is the number of policies that match no pod of the stream.
	otherPolicies = 200
	// matchingPolicies is the number of policies that match the pods of the stream.
	matchingPolicies = 5
)

// No bind of a steady stream fails or escapes a policy while two replicas are replaced one after another. A replica that has not
// compiled the policies is not ready.
func testPolicyRollingRestart(t *testing.T, w *world) {
	s := newStream(t, w, "3s")
	p := &policies{bench: s.bench, client: newPolicies(t, w).client}
	p.grant(storagev1.GroupName, "csinodes")
	began := time.Now()
	for i := range otherPolicies {
		other := parsePolicy(t, fmt.Sprintf("%s-other-%d", p.ns, i), `
variables: [{name: zone, expression: "node.metadata.labels[?'topology.kubernetes.io/zone'].orValue('')"}]
validations: [{expression: "variables.zone.startsWith('none')", messageExpression: "'zone ' + variables.zone"}]
`)
		other.Spec.MatchConstraints.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"other": fmt.Sprint(i)}}
		require.NoError(t, p.client.Create(t.Context(), other))
	}
	t.Cleanup(func() {
		assert.NoError(t, p.client.DeleteAllOf(context.WithoutCancel(t.Context()), &v1alpha1.BindPolicy{}))
	})
	var keys []string
	for i := range matchingPolicies {
		policy := p.add(fmt.Sprintf("zz-%d", i), `
resources: [{name: csinode, apiVersion: storage.k8s.io/v1, kind: CSINode, nameExpression: node.metadata.name}]
validations: [{expression: "pod.spec.schedulerName != 'unknown'"}]
mutations: {annotations: [{key: driver, valueExpression: "resources.csinode == null ? 'none' : resources.csinode.metadata.name"}]}
`)
		keys = append(keys, key(policy, "driver"))
	}
	w.untilMetric(t, fmt.Sprintf(`prebind_policies{state="in_force"} %d`, otherPolicies+matchingPolicies))
	t.Logf("%d policies in force after %s", otherPolicies+matchingPolicies, time.Since(began).Round(time.Millisecond))
	s.during(func() {
		for _, r := range w.prebind.Replicas() {
			require.NoError(t, r.Process.Stop())
			began := time.Now()
			require.NoError(t, r.Process.Start())
			require.NoError(t, r.WaitReady(t.Context()))
			t.Logf("%s ready after %s", r.Name(), time.Since(began).Round(time.Millisecond))
			answer, err := ask(t.Context(), r, p.dryRunOf(p.probeBinding()))
			require.NoError(t, err)
			assert.Len(t, findingsIn(answer), matchingPolicies, "a ready replica should apply all policies")
		}
		// The stream ends when all pods are bound.
		require.NoError(t, p.bench.client.CoreV1().Pods(p.ns).Delete(t.Context(), probe, metav1.DeleteOptions{}))
	})
	pods, err := p.bench.client.CoreV1().Pods(p.ns).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	bound, escaped := 0, sets.New[string]()
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == "" {
			continue
		}
		bound++
		for _, k := range keys {
			if pod.Annotations[k] != "none" {
				escaped.Insert(pod.Name)
			}
		}
	}
	assert.Empty(t, sets.List(escaped), "no bind should escape a policy")
	assert.GreaterOrEqual(t, bound, atLeast)
}
