// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// Labels and annotations of nodes that Kubernetes does not define.
const (
	leafLabel     = "example.com/net-leaf"
	spineLabel    = "example.com/net-spine"
	serialNote    = "example.com/serial"
	ownerNote     = "example.com/owner"
	rackPodLabel  = "topology.prebind.dev/rack"
	pathNote      = "topology.prebind.dev/path"
	bindInfo      = "bind-info.prebind.dev/"
	nodeInfo      = "node-info.prebind.dev/"
	capacityLabel = "karpenter.sh/capacity-type"
	kubeScheduler = "system:kube-scheduler"
)

// Mutators and plugins that are off by default share an installation. The tests in parallel use separate namespaces and nodes, and policies
// for their namespaces. The tests after them concern all pods, or stop replicas.
func TestOptional(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, 0,
		"--mutators=*,node-info,bind-info,device-info",
		// Claims are reported even if no plugin handles them.
		"--prebind-plugins=*,announce,-resource-claims",
		"--topology-labels=example.com/net-*=n-*",
		"--topology-path="+strings.Join([]string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, cluster.RackLabel, corev1.LabelHostname}, ","),
		"--topology-pod-labels=rack,n-leaf",
		"--node-info-annotations="+serialNote+","+ownerNote+"=team",
		"--policy-key-prefixes=ray.io",
	)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "mutators/device-info", "plugins/announce", "plugins/policy"))
	o := startObserved(t, w)
	t.Run("observability", o.test)
	_, err := w.start(t.Context())
	require.NoError(t, err)
	t.Run("in parallel", func(t *testing.T) {
		newPolicies(t, w).applyRackAwareness()
		for name, test := range map[string]func(*testing.T, *world){
			"facts": testFacts, "manifests": testManifests, "operator": testOperator, "announce to kube-scheduler": testAnnounceKubeScheduler,
			"announce, another node": testAnnounceAnotherNode, "announce, taken": testAnnounceTaken,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, w)
			})
		}
		for name, test := range map[string]func(*policies){
			"keys": testPolicyKeys, "key not allowed": testPolicyKeyNotAllowed, "reject": testPolicyRejectsNode, "audit": testPolicyAudit,
			"wait": testPolicyWaits, "kind is installed later": testPolicyKindLater, "Strimzi": testPolicyStrimzi,
			"task": testPolicyTask, "task fails": testPolicyTaskFailed,
		} {
			t.Run("policy, "+name, func(t *testing.T) {
				t.Parallel()
				test(newPolicies(t, w))
			})
		}
	})
	t.Run("policy, exempt pods", func(t *testing.T) { testPolicyExempt(newPolicies(t, w)) })
	t.Run("policy, restart", func(t *testing.T) { testPolicyRestart(newPolicies(t, w)) })
}

// knownNode creates a node with all fields, labels and annotations that mutators read.
func (b *bench) knownNode() (name string, pod []gen.PodOption) {
	b.t.Helper()
	name = "known-" + b.ns
	labels := cluster.WithLabels(map[string]string{
		b.label(): "yes", leafLabel: "leaf-7", spineLabel: "spine-2", cluster.RackLabel: "rack-42",
		corev1.LabelInstanceTypeStable: "m7.large", capacityLabel: "spot",
	})
	taint := cluster.WithTaints(corev1.Taint{Key: b.label(), Effect: corev1.TaintEffectNoSchedule})
	say := func(node *corev1.Node) {
		node.Annotations = map[string]string{serialNote: "SN 0042 / β", ownerNote: `{"team":"storage"}`, "example.com/secret": "confidential"}
		node.Spec.ProviderID = "example:///zone-1/i-0123456789"
		node.Status.NodeInfo = corev1.NodeSystemInfo{
			Architecture: "amd64", OperatingSystem: "linux", OSImage: "Example Linux 12 (stable)",
			KernelVersion: "6.12.9-1", KubeletVersion: "v1.36.3", ContainerRuntimeVersion: "containerd://2.1.0",
		}
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.1.2.3"},
			{Type: corev1.NodeExternalIP, Address: "203.0.113.7"},
			{Type: corev1.NodeInternalIP, Address: "fd00::7"},
			{Type: corev1.NodeInternalDNS, Address: "known.internal.example.com"},
			{Type: corev1.NodeExternalDNS, Address: "known.example.com"},
			{Type: corev1.NodeHostName, Address: "known"},
		}
	}
	require.NoError(b.t, cluster.CreateNodes(b.t.Context(), b.client, cluster.Node(name, labels, taint, say)))
	return name, []gen.PodOption{b.steered(), gen.Tolerates(b.label())}
}

func (b *bench) node(name string) *corev1.Node {
	b.t.Helper()
	node, err := b.client.CoreV1().Nodes().Get(b.t.Context(), name, metav1.GetOptions{})
	require.NoError(b.t, err)
	return node
}

// factsOf returns the annotations that topology and node-info add for a knownNode, according to the API server.
func factsOf(node *corev1.Node) map[string]string {
	l, info := node.Labels, node.Status.NodeInfo
	address := func(i int) string { return node.Status.Addresses[i].Address }
	facts := map[string]string{
		"topology.prebind.dev/zone":     l[corev1.LabelTopologyZone],
		"topology.prebind.dev/region":   l[corev1.LabelTopologyRegion],
		"topology.prebind.dev/hostname": l[corev1.LabelHostname],
		rackPodLabel:                    l[cluster.RackLabel],
		"topology.prebind.dev/n-leaf":   l[leafLabel],
		"topology.prebind.dev/n-spine":  l[spineLabel],
		pathNote:                        pathOf(node),
	}
	for key, value := range map[string]string{
		"instance-type":             l[corev1.LabelInstanceTypeStable],
		"capacity-type":             l[capacityLabel],
		"provider-id":               node.Spec.ProviderID,
		"architecture":              info.Architecture,
		"operating-system":          info.OperatingSystem,
		"os-image":                  info.OSImage,
		"kernel-version":            info.KernelVersion,
		"kubelet-version":           info.KubeletVersion,
		"container-runtime-version": info.ContainerRuntimeVersion,
		"internal-ip":               address(0) + "," + address(2),
		"external-ip":               address(1),
		"internal-dns":              address(3),
		"external-dns":              address(4),
		"hostname":                  address(5),
		"serial":                    node.Annotations[serialNote],
		"team":                      node.Annotations[ownerNote],
	} {
		facts[nodeInfo+key] = value
	}
	return facts
}

func pathOf(node *corev1.Node) string {
	l := node.Labels
	return strings.Join([]string{l[corev1.LabelTopologyRegion], l[corev1.LabelTopologyZone], l[cluster.RackLabel], l[corev1.LabelHostname]}, "/")
}

// ours returns the entries under Prebind's domain.
func ours(all map[string]string) map[string]string {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(key, _ string) bool {
		prefix, _, _ := strings.Cut(key, "/")
		return !strings.HasSuffix(prefix, ".prebind.dev")
	})
	return out
}

// A pod that kube-scheduler binds has exactly the annotations of its node and its bind.
func testFacts(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	node, options := b.knownNode()
	created := b.podWith(cluster.DefaultScheduler, options...)
	pod := b.untilBound()
	require.Equal(t, node, pod.Spec.NodeName)

	want := factsOf(b.node(node))
	for key, value := range want {
		require.NotEmpty(t, value, "the node should have a value for %s", key)
	}
	want[bindInfo+"user"], want[bindInfo+"scheduler"], want[bindInfo+"calls"] = kubeScheduler, cluster.DefaultScheduler, "1"
	got := ours(pod.Annotations)
	at, waited := got[bindInfo+"time"], got[bindInfo+"waited"]
	delete(got, bindInfo+"time")
	delete(got, bindInfo+"waited")
	assert.Equal(t, want, got)
	b.assertRecent(at, created.CreationTimestamp.Time)
	assert.Regexp(t, `^\d+\.\d{3}s$`, waited)

	b.assertCopied(t, pod, rackPodLabel, "rack-42")
	b.assertCopied(t, pod, "topology.prebind.dev/n-leaf", "leaf-7")
	assert.Subset(t, []string{rackPodLabel, "topology.prebind.dev/n-leaf"}, slices.Collect(maps.Keys(ours(pod.Labels))), "only the configured labels")
	assert.Equal(t, []string{"allowed"}, b.decisions())
}

// assertRecent checks a time in an annotation, which has whole seconds.
func (b *bench) assertRecent(at string, since time.Time) {
	b.t.Helper()
	told, err := time.Parse(time.RFC3339, at)
	require.NoError(b.t, err)
	assert.True(b.t, strings.HasSuffix(at, "Z"), "%s should be in UTC", at)
	assert.WithinRange(b.t, told, since.Add(-time.Second), time.Now())
}
