// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
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
	variantLabel  = "e2e.prebind.dev/variant"
	kubeScheduler = "system:kube-scheduler"
)

// Tests of mutators and of the plugin announce have their own installation, because they are off by default. Replicas with other flags handle
// the binds of separate namespaces.
func TestMutators(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, 0,
		"--mutators=*,node-info,bind-info,device-info",
		// Claims are reported even if no plugin handles them.
		"--prebind-plugins=*,announce,-resource-claims",
		"--topology-labels=example.com/net-*=n-*",
		"--topology-path="+strings.Join([]string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, cluster.RackLabel, corev1.LabelHostname}, ","),
		"--topology-pod-labels=rack,n-leaf",
		"--node-info-annotations="+serialNote+","+ownerNote+"=team",
	)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "mutators/device-info", "plugins/announce"))
	for range 2 {
		_, err := w.start(t.Context())
		require.NoError(t, err)
	}
	off := &variant{name: "off", args: []string{"--mutators=", "--prebind-plugins="}}
	o := newObserved(t)
	w.beside(t, off, o.variant)
	t.Run("facts", func(t *testing.T) { testFacts(t, w) })
	t.Run("passes through", func(t *testing.T) { testPassesThrough(t, w, off) })
	t.Run("manifests", func(t *testing.T) { testManifests(t, w) })
	t.Run("observability", o.test)
	t.Run("announce", func(t *testing.T) { testAnnounce(t, w) })
}

// variant is a replica with other flags in the same cluster. It handles the binds of separate namespaces.
type variant struct {
	name string
	args []string

	*world
	replica *install.Replica
}

// labels returns the labels of its namespaces. The shipped webhook configuration excludes these namespaces.
func (v *variant) labels() map[string]string {
	return map[string]string{variantLabel: v.name, "prebind.dev/exempt": ""}
}

func (v *variant) bench(t *testing.T) *bench {
	t.Helper()
	return newBench(t, v.world, v.labels())
}

// beside starts the variants and waits until the API server calls them.
func (w *world) beside(t *testing.T, variants ...*variant) {
	t.Helper()
	everybody := w.prebind.Replicas()
	for i, v := range variants {
		var err error
		v.world = w
		v.replica, err = w.prebind.Start(t.Context(), v.args...)
		require.NoError(t, err)
		v.register(t, int32(1000+i))
	}
	w.prebind.RouteTo(everybody...)
	for _, v := range variants {
		b := v.bench(t)
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			// The pod does not exist. The API server calls Prebind before it returns an error.
			err := b.client.CoreV1().Pods(b.ns).Bind(t.Context(), b.binding("node-1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.Error(c, err)
			assert.NotEmpty(c, b.decisions())
		}, patience, 100*time.Millisecond, "the API server should ask the replica %s", v.name)
	}
}

// register registers the variant with a copy of the shipped webhook configuration. It uses another port of the same Service, so
// that the certificate is valid.
func (v *variant) register(t *testing.T, port int32) {
	t.Helper()
	v.cluster.Services().Route(install.Namespace, install.Service, port, cluster.Backend{
		Address: v.replica.WebhookAddress(), Ready: cluster.HTTPReady("http://" + v.replica.HealthAddress() + "/readyz"),
	})
	_, err := v.client.CoreV1().Services(install.Namespace).Patch(t.Context(), install.Service, types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/spec/ports/-","value":{"name":"`+v.name+`","port":`+strconv.Itoa(int(port))+`}}]`), metav1.PatchOptions{})
	require.NoError(t, err)

	configs := v.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	config, err := configs.Get(t.Context(), "prebind", metav1.GetOptions{})
	require.NoError(t, err)
	config.ObjectMeta = metav1.ObjectMeta{Name: "prebind-" + v.name}
	config.Webhooks[0].ClientConfig.Service.Port = &port
	config.Webhooks[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: v.labels()}
	_, err = configs.Create(t.Context(), config, metav1.CreateOptions{})
	require.NoError(t, err)
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

// whoami is the user that posts the Bindings by hand.
func (b *bench) whoami() string {
	b.t.Helper()
	review, err := b.client.AuthenticationV1().SelfSubjectReviews().Create(b.t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	require.NoError(b.t, err)
	require.NotEmpty(b.t, review.Status.UserInfo.Username)
	return review.Status.UserInfo.Username
}

// A bound pod has exactly the annotations of its node and its bind, for every scheduler and path.
func testFacts(t *testing.T, w *world) {
	legacy := func(b *bench, node string) error {
		return b.client.CoreV1().RESTClient().Post().Namespace(b.ns).Resource("bindings").Body(b.binding(node)).Do(t.Context()).Error()
	}
	tests := map[string]struct {
		reason    string
		scheduler string
		bind      func(b *bench, node string) error
	}{
		"kube-scheduler":       {reason: "kube-scheduler is not modified for Prebind", scheduler: cluster.DefaultScheduler},
		"by hand":              {reason: "any client can post a Binding", scheduler: byHand, bind: func(b *bench, node string) error { return b.bindByHand(b.binding(node)) }},
		"by hand, legacy path": {reason: "the older API binds pods in the same way", scheduler: byHand, bind: legacy},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w, nil)
			node, options := b.knownNode()
			created := b.podWith(tc.scheduler, options...)
			user := kubeScheduler
			if tc.bind != nil {
				user = b.whoami()
				require.NoError(t, tc.bind(b, node))
			}
			pod := b.untilBound()
			require.Equal(t, node, pod.Spec.NodeName)

			want := factsOf(b.node(node))
			for key, value := range want {
				require.NotEmpty(t, value, "the node should have a value for %s", key)
			}
			want[bindInfo+"user"], want[bindInfo+"scheduler"], want[bindInfo+"calls"] = user, tc.scheduler, "1"
			got := ours(pod.Annotations)
			at, waited := got[bindInfo+"time"], got[bindInfo+"waited"]
			delete(got, bindInfo+"time")
			delete(got, bindInfo+"waited")
			assert.Equal(t, want, got, tc.reason)
			b.assertRecent(at, created.CreationTimestamp.Time)
			assert.Regexp(t, `^\d+\.\d{3}s$`, waited)
			assert.Less(t, parse(t, waited), aMoment, "no call was held, because there was no wait")

			b.assertCopied(t, pod, rackPodLabel, "rack-42")
			b.assertCopied(t, pod, "topology.prebind.dev/n-leaf", "leaf-7")
			assert.Subset(t, []string{rackPodLabel, "topology.prebind.dev/n-leaf"}, slices.Collect(maps.Keys(ours(pod.Labels))), "only the configured labels")
			assert.Equal(t, []string{"allowed"}, b.decisions())
		})
	}
}

// assertRecent checks a time in an annotation, which has whole seconds.
func (b *bench) assertRecent(at string, since time.Time) {
	b.t.Helper()
	told, err := time.Parse(time.RFC3339, at)
	require.NoError(b.t, err)
	assert.True(b.t, strings.HasSuffix(at, "Z"), "%s should be in UTC", at)
	assert.WithinRange(b.t, told, since.Add(-time.Second), time.Now())
}

func parse(t *testing.T, duration string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(duration)
	require.NoError(t, err)
	return d
}
