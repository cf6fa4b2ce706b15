// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
	"github.com/prebind/prebind/test/metrics"
	"github.com/prebind/prebind/test/otlp"
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
		"wait": testPolicyWaits, "role": testPolicyReadsWithRole, "Strimzi": testPolicyStrimzi, "task fails": testPolicyTaskFailed,
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

// announcer begins the field managers of the plugin announce. The attempt follows.
const announcer = "prebind-announce-"

// nominationOf returns status.nominatedNodeName of the pod, with a star if only Prebind owns the field.
func nominationOf(pod *corev1.Pod) string {
	node, ours, others := pod.Status.NominatedNodeName, false, false
	for _, entry := range pod.ManagedFields {
		if strings.Contains(string(entry.FieldsV1.GetRawBytes()), `"f:nominatedNodeName"`) {
			own := strings.HasPrefix(entry.Manager, announcer)
			ours, others = ours || own, others || !own
		}
	}
	if node != "" && ours && !others {
		node += "*"
	}
	return node
}

// nominations records the nominations of the pod "pod", without repetitions.
type nominations struct {
	mu  sync.Mutex
	all []string
}

// watchNominations starts the record. It must be called before the pod is created.
func (b *bench) watchNominations() *nominations {
	b.t.Helper()
	w, err := b.client.CoreV1().Pods(b.ns).Watch(b.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=pod"})
	require.NoError(b.t, err)
	b.t.Cleanup(w.Stop)
	h := &nominations{}
	go func() {
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				h.add(nominationOf(pod))
			}
		}
	}()
	return h
}

func (h *nominations) add(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.all) == 0 || h.all[len(h.all)-1] != node {
		h.all = append(h.all, node)
	}
}

func (h *nominations) nodes() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.all)
}

// untilAnnounced waits until Prebind has announced the node.
func (b *bench) untilAnnounced(node string) {
	b.t.Helper()
	b.until("announced", func(pod *corev1.Pod) bool { return nominationOf(pod) == node+"*" })
}

// kube-scheduler binds a pod that waits, without a failure.
func testAnnounceKubeScheduler(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	node, toleration := b.ownNode("late")
	h := b.watchNominations()
	b.podWith(cluster.DefaultScheduler, toleration, b.steered(), expectsDriver(), waits("2m"))
	b.untilAnnounced(node)
	b.installDriver(node)
	assert.Equal(t, node, b.untilBound().Spec.NodeName)
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, []string{"", node + "*", ""}, h.nodes()) }, patience, again)
	assert.Equal(t, corev1.PodPending, b.untilBound().Status.Phase, "the rest of the status stays")
	b.assertNeverFailed()
}

// A pod that Prebind rejects is not stuck on the announced node: kube-scheduler prefers another one then.
func testAnnounceAnotherNode(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	first, toleration := b.ownNode("first")
	second, _ := b.ownNode("second")
	b.kubectl("label", "node", second, b.label()+"-")
	b.installDriver(second)
	h := b.watchNominations()
	b.podWith(cluster.DefaultScheduler, toleration, b.steered(), expectsDriver(), waits("10s"))
	b.untilAnnounced(first)
	// The first node is still possible, and only a nomination would make kube-scheduler choose it.
	b.kubectl("taint", "node", first, "example.com/busy:PreferNoSchedule")
	b.kubectl("label", "node", second, b.label()+"=yes")
	assert.Equal(t, second, b.untilBound().Spec.NodeName)
	nodes := h.nodes()
	assert.Equal(t, []string{"", first + "*", ""}, nodes[:min(3, len(nodes))])
	assert.Len(t, slices.DeleteFunc(nodes, func(node string) bool { return node != first+"*" }), 1, "the first node should be tried once")
}

// observed is a replica with /debug and traces.
type observed struct {
	*world
	replica   *install.Replica
	debug     string
	collector *otlp.Receiver
}

// startObserved starts the first replica of the world.
func startObserved(t *testing.T, w *world) *observed {
	t.Helper()
	o := &observed{world: w, collector: otlp.Receive(t)}
	var err error
	o.debug, err = w.cluster.ReserveAddress(t.Context())
	require.NoError(t, err)
	o.replica, err = w.prebind.Start(t.Context(), slices.Concat(w.args, []string{
		"--debug-bind-address=" + o.debug, "--tracing-endpoint=" + o.collector.Address(), "--tracing-sampling-rate-per-million=1000000",
	})...)
	require.NoError(t, err)
	return o
}

// test binds a pod that waits and posts a Binding that is rejected. It then checks metrics and /debug, and that the collector gets
// the spans of the bind.
func (o *observed) test(t *testing.T) {
	b := newBench(t, o.world, nil)
	b.claim("data", b.dynamic("3s"))
	b.podWith(byHand, usesClaims([]string{"data"})...)
	bound := b.beginBind("node-1")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var attempts []work.InFlight
		body, _, err := install.Fetch(t.Context(), "http://"+o.debug+"/debug/attempts")
		require.NoError(c, err)
		require.NoError(c, json.Unmarshal([]byte(body), &attempts))
		require.Len(c, attempts, 1)
		assert.Equal(c, []string{b.ns, "pod", "node-1", "volumebinding"}, []string{attempts[0].Namespace, attempts[0].Pod, attempts[0].Node, attempts[0].Plugin})
	}, patience, 20*time.Millisecond, "/debug/attempts should show the bind")
	require.NoError(t, b.end(bound))
	pod := b.untilBound()
	other, err := b.createPod("other", byHand)
	require.NoError(t, err)
	require.True(t, apierrors.IsForbidden(b.bindByHand(gen.Binding(other, "no-such-node"))), "the node does not exist")

	for path, words := range map[string]string{"config": "kind: PrebindConfiguration", "pprof/": "goroutine"} {
		body, code, err := install.Fetch(t.Context(), "http://"+o.debug+"/debug/"+path)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, code, path)
		assert.Contains(t, body, words, path)
	}
	_, code, err := install.Fetch(t.Context(), "http://"+shared.prebind.Replicas()[0].MetricsAddress()+"/debug/pprof/")
	require.NoError(t, err)
	assert.Equal(t, http.StatusNotFound, code, "debug is off by default")
	b.checkMetrics(t, o.replica, pod)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NotEmpty(c, o.collector.Spans("prebind.attempt", pod.Annotations[attemptKey]))
	}, patience, 100*time.Millisecond, "the collector should get the spans of the bind")
}

// Lines of the text format of Prebind's metrics.
var (
	metricType   = regexp.MustCompile(`(?m)^# TYPE (prebind_\w+) (\w+)$`)
	metricSeries = regexp.MustCompile(`(?m)^prebind_.*$`)
)

// checkMetrics checks that the metrics of the binds exist, that all metrics are documented, and that they contain no names of pods, nodes
// or namespaces.
func (b *bench) checkMetrics(t *testing.T, replica *install.Replica, pod *corev1.Pod) {
	t.Helper()
	text, err := replica.Metrics(t.Context())
	require.NoError(t, err)
	known, err := metrics.All()
	require.NoError(t, err)
	types := map[string]string{}
	for _, m := range known {
		types[m.Name] = m.Type
	}
	for _, found := range metricType.FindAllStringSubmatch(text, -1) {
		name := found[1]
		assert.Contains(t, types, name, "%s is registered but not documented: add it to the Recorder in telemetry", name)
		assert.Equal(t, types[name], found[2], name)
	}
	for _, series := range metricSeries.FindAllString(text, -1) {
		for _, secret := range []string{b.ns, "node-1", string(pod.UID), "no-such-node"} {
			assert.NotContains(t, series, secret)
		}
	}
	assert.Contains(t, text, `prebind_plugin_duration_seconds_count{extension_point="PreBind",plugin="volumebinding",result="ok"} 1`)
	assert.Contains(t, text, "prebind_bind_wait_seconds_count 1")
	assert.Contains(t, text, `prebind_decisions_total{decision="refused",plugin="binder"} 1`)
	assert.Contains(t, text, `prebind_live_reads_total{kind="Node",plugin="binder",reason="missing"}`)
}
