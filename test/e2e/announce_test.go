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
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
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

// testAnnounce checks the field status.nominatedNodeName with a real kube-scheduler.
func testAnnounce(t *testing.T, w *world) {
	for name, test := range map[string]func(t *testing.T, w *world){
		"rejected": testAnnounceRejected, "taken": testAnnounceTaken, "kube-scheduler": testAnnounceKubeScheduler,
		"another node": testAnnounceAnotherNode, "preemption": testAnnouncePreemption,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, w)
		})
	}
}

// The field is cleared when the bind is rejected.
func testAnnounceRejected(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	node, toleration := b.ownNode("never")
	h := b.watchNominations()
	b.podWith(byHand, toleration, expectsDriver(), waits("5s"))
	b.assertRefused(b.bindByHand(b.binding(node)), "still waiting for the label")
	b.assertNominations(h, "", node+"*", "")
	assert.Equal(t, corev1.PodPending, b.until("unbound", notBound).Status.Phase, "the rest of the status stays")
}

// A value that another component has set is kept.
func testAnnounceTaken(t *testing.T, w *world) {
	t.Run("before", func(t *testing.T) {
		b := newBench(t, w, nil)
		node, toleration := b.ownNode("never")
		h := b.watchNominations()
		b.podWith(byHand, toleration, expectsDriver(), waits("5s"))
		b.nominate("node-6")
		b.assertRefused(b.bindByHand(b.binding(node)), "still waiting for the label")
		b.assertNominations(h, "", "node-6")
	})
	t.Run("after", func(t *testing.T) {
		b := newBench(t, w, nil)
		node, toleration := b.ownNode("never")
		h := b.watchNominations()
		b.podWith(byHand, toleration, expectsDriver(), waits("8s"))
		bound := b.beginBind(node)
		b.untilAnnounced(node)
		b.nominate("node-6")
		b.assertRefused(b.end(bound), "still waiting for the label")
		b.assertNominations(h, "", node+"*", "node-6")
	})
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

// The nomination of a preemption stays as it is until the API server clears it with the bind, if it does.
func testAnnouncePreemption(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	node := "small-" + b.ns
	require.NoError(t, cluster.CreateNodes(t.Context(), b.client, cluster.Node(node, cluster.WithLabels(map[string]string{b.label(): "yes"}),
		cluster.WithTaints(corev1.Taint{Key: b.label(), Effect: corev1.TaintEffectNoSchedule}),
		cluster.WithResources(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}))))
	_, err := b.client.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: b.ns}, Value: 1000}, metav1.CreateOptions{})
	require.NoError(t, err)
	small := func(name string, options ...gen.PodOption) *corev1.Pod {
		pod := gen.Pod(name, append([]gen.PodOption{gen.InNamespace(b.ns), gen.Scheduler(cluster.DefaultScheduler), gen.Tolerates(b.label()), b.steered()}, options...)...)
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		return pod
	}
	pods := b.client.CoreV1().Pods(b.ns)
	// No kubelet ends the victim, so it stays in its grace period until the test deletes it.
	victim, err := pods.Create(t.Context(), small("victim"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		pod, err := pods.Get(t.Context(), victim.Name, metav1.GetOptions{})
		require.NoError(c, err)
		assert.Equal(c, node, pod.Spec.NodeName)
	}, patience, again)

	h := b.watchNominations()
	preemptor := small("pod", expectsDriver(), waits("2m"))
	preemptor.Spec.PriorityClassName = b.ns
	_, err = pods.Create(t.Context(), preemptor, metav1.CreateOptions{})
	require.NoError(t, err)
	b.until("nominated", func(pod *corev1.Pod) bool { return pod.Status.NominatedNodeName == node })
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		pod, err := pods.Get(t.Context(), victim.Name, metav1.GetOptions{})
		require.NoError(c, err)
		assert.NotNil(c, pod.DeletionTimestamp, "kube-scheduler preempts the victim")
	}, patience, again)
	require.NoError(t, pods.Delete(t.Context(), victim.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))

	b.untilEvent("WaitingForPreBind", "node-state: Node "+node)
	b.installDriver(node)
	assert.Equal(t, node, b.untilBound().Spec.NodeName)
	want := []string{"", node}
	if w.enabled(t, clearsNomination) {
		want = append(want, "")
	}
	b.assertNominations(h, want...)
}
