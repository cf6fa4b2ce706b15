// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/cluster"
)

// announcer begins the field managers of the plugin announce. The attempt follows.
const announcer = "prebind-announce-"

// nomination is a value of status.nominatedNodeName of the pod with the field managers that own it.
type nomination struct {
	node string
	by   []string
}

// ours reports whether only Prebind owns the value.
func (n nomination) ours() bool {
	return len(n.by) > 0 && !slices.ContainsFunc(n.by, func(m string) bool { return !strings.HasPrefix(m, announcer) })
}

func nominationOf(pod *corev1.Pod) nomination {
	n := nomination{node: pod.Status.NominatedNodeName}
	for _, entry := range pod.ManagedFields {
		var owned struct {
			Status map[string]any `json:"f:status"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned) != nil {
			continue
		}
		if _, ok := owned.Status["f:nominatedNodeName"]; ok && n.node != "" {
			n.by = append(n.by, entry.Manager)
		}
	}
	return n
}

// nominations records the nominations of the pod "pod", without repetitions.
type nominations struct {
	mu  sync.Mutex
	all []nomination
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

func (h *nominations) add(n nomination) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.all) == 0 || h.all[len(h.all)-1].node != n.node || !slices.Equal(h.all[len(h.all)-1].by, n.by) {
		h.all = append(h.all, n)
	}
}

// nodes returns the values without repetitions. A value of Prebind alone has a star.
func (h *nominations) nodes() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var nodes []string
	for _, n := range h.all {
		node := n.node
		if n.ours() {
			node += "*"
		}
		if len(nodes) == 0 || nodes[len(nodes)-1] != node {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// assertNominations waits until the record ends with the last value, and checks all values.
func (b *bench) assertNominations(h *nominations, want ...string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		nodes := h.nodes()
		require.NotEmpty(c, nodes)
		assert.Len(c, nodes, len(want))
		assert.Equal(c, want[len(want)-1], nodes[len(nodes)-1])
	}, patience, again, "%v, want %v; events: %q", h.nodes(), want, b.events())
	assert.Equal(b.t, want, h.nodes())
}

// untilAnnounced waits until Prebind has announced the node.
func (b *bench) untilAnnounced(node string) {
	b.t.Helper()
	b.until("announced", func(pod *corev1.Pod) bool { n := nominationOf(pod); return n.node == node && n.ours() })
}

// nominate sets the nominatedNodeName like another component.
func (b *bench) nominate(node string) {
	b.t.Helper()
	_, err := b.client.CoreV1().Pods(b.ns).Patch(b.t.Context(), "pod", types.MergePatchType,
		[]byte(`{"status":{"nominatedNodeName":"`+node+`"}}`), metav1.PatchOptions{FieldManager: "kueue"}, "status")
	require.NoError(b.t, err)
}

// A value that another component has set is kept when the bind is rejected.
func testAnnounceTaken(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	node, toleration := b.ownNode("never")
	h := b.watchNominations()
	b.podWith(byHand, toleration, expectsDriver(), waits("8s"))
	bound := b.beginBind(node)
	b.untilAnnounced(node)
	b.nominate("node-6")
	b.assertRefused(b.end(bound), "still waiting for the label")
	b.assertNominations(h, "", node+"*", "node-6")
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
	b.assertNominations(h, "", node+"*", "")
	assert.Equal(t, corev1.PodPending, b.untilBound().Status.Phase, "the rest of the status stays")
	b.assertNeverFailed()
}

// A pod that Prebind rejects is not stuck on the announced node: kube-scheduler prefers another one then.
func testAnnounceAnotherNode(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	first, toleration := b.ownNode("first")
	second, _ := b.ownNode("second")
	b.forbid(second)
	b.installDriver(second)
	h := b.watchNominations()
	b.podWith(cluster.DefaultScheduler, toleration, b.steered(), expectsDriver(), waits("10s"))
	b.untilAnnounced(first)
	// The first node is still possible, and only a nomination would make kube-scheduler choose it.
	b.taint(first, "example.com/busy", corev1.TaintEffectPreferNoSchedule)
	b.allow(second)
	assert.Equal(t, second, b.untilBound().Spec.NodeName)
	nodes := h.nodes()
	assert.Equal(t, []string{"", first + "*", ""}, nodes[:min(3, len(nodes))])
	assert.Len(t, slices.DeleteFunc(nodes, func(node string) bool { return node != first+"*" }), 1, "the first node should be tried once")
}
