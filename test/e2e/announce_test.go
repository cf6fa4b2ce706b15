// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
)

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
