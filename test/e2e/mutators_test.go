// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/prebind/prebind/test/install"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
)

// Labels and annotations of nodes that Kubernetes does not define.
const (
	bindInfo      = "bind-info.prebind.dev/"
	capacityLabel = "karpenter.sh/capacity-type"
	kubeScheduler = "system:kube-scheduler"
)

// Mutators and plugins that are off by default share an installation. The tests use separate namespaces and nodes, and policies for their
// namespaces.
func TestOptional(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, install.Options{}, 0,
		"--mutators=*,node-info,bind-info,device-info",
		// Claims are reported even if no plugin handles them.
		"--prebind-plugins=*,announce,-resource-claims",
		"--topology-path="+strings.Join([]string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, cluster.RackLabel, corev1.LabelHostname}, ","),
		"--policy-key-prefixes=ray.io",
	)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "mutators/device-info", "plugins/announce", "plugins/policy"))
	o := startObserved(t, w)
	t.Run("observability", o.test)
	_, err := w.start(t.Context())
	require.NoError(t, err)
	newPolicies(t, w).applyRackAwareness()
	for name, test := range map[string]func(*testing.T, *world){
		"manifests": testManifests, "operator": testOperator, "announce to kube-scheduler": testAnnounceKubeScheduler,
		"announce, another node": testAnnounceAnotherNode,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, w)
		})
	}
	for name, test := range map[string]func(*policies){
		"keys": testPolicyKeys, "reject": testPolicyRejectsNode,
		"wait": testPolicyWaits, "Strimzi": testPolicyStrimzi, "task fails": testPolicyTaskFailed,
	} {
		t.Run("policy, "+name, func(t *testing.T) {
			t.Parallel()
			test(newPolicies(t, w))
		})
	}
}

func (b *bench) node(name string) *corev1.Node {
	b.t.Helper()
	node, err := b.client.CoreV1().Nodes().Get(b.t.Context(), name, metav1.GetOptions{})
	require.NoError(b.t, err)
	return node
}

func pathOf(node *corev1.Node) string {
	l := node.Labels
	return strings.Join([]string{l[corev1.LabelTopologyRegion], l[corev1.LabelTopologyZone], l[cluster.RackLabel], l[corev1.LabelHostname]}, "/")
}
