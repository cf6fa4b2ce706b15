// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

const configHead = "apiVersion: config.prebind.dev/v1alpha1\nkind: PrebindConfiguration\n"

// untilMetric waits until the metrics of all replicas contain the line.
func (w *world) untilMetric(t *testing.T, line string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, r := range w.prebind.Replicas() {
			all, err := r.Metrics(t.Context())
			require.NoError(c, err)
			assert.Contains(c, strings.Split(all, "\n"), line)
		}
	}, patience, 200*time.Millisecond, "%s should have %s", t.Name(), line)
}

// bound binds a new pod by hand to node-1, and returns it.
func (w *world) bound(t *testing.T) *corev1.Pod {
	t.Helper()
	b := newBench(t, w, nil)
	b.pod(byHand)
	require.NoError(t, b.bindByHand(b.binding("node-1")))
	return b.untilBound()
}

// Tests that change the configuration have their own installation. They run one after another.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, install.Options{}, 2)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "plugins/node-ready"))
	t.Run("plugins and mutators", func(t *testing.T) { testToggleByFile(t, w) })
	t.Run("start-limit", func(t *testing.T) { testStartLimit(t, w) })
	t.Run("node-ready", func(t *testing.T) { testNodeReady(t, w) })
}

// configure changes the configuration file, and replaces the replicas one after another.
func (w *world) configure(t *testing.T, config string) {
	t.Helper()
	require.NoError(t, w.prebind.SetConfig(t.Context(), config))
	require.NoError(t, w.prebind.Rollout(t.Context(), w.args...))
}

// A rollout with another configuration file enables and disables mutators and plugins, and no bind of a steady stream fails. A replica with an
// invalid file does not start.
func testToggleByFile(t *testing.T, w *world) {
	audited, ignored, waiting, rejected := newBench(t, w, nil), newBench(t, w, nil), newBench(t, w, nil), newBench(t, w, nil)
	waiting.podWith(byHand, expectsDriver(), waits("5m"))
	bound := waiting.beginBind("node-1")
	waiting.untilEvent("WaitingForPreBind", "node-state: Node node-1")
	newStream(t, w, "1s").during(func() {
		assert.NotContains(t, w.bound(t).Annotations, "bind-info.prebind.dev/calls")
		require.NoError(t, w.prebind.SetConfig(t.Context(), configHead+"prebindPlugins: ['*', volumes]\n"))
		r, err := w.start(t.Context())
		require.Error(t, err)
		assert.Contains(t, r.Tail(10), `unknown PreBind plugin "volumes"`)
		require.Error(t, w.prebind.Remove(r), "the process has exited")
		w.configure(t, configHead+fmt.Sprintf("mutators: ['*', bind-info]\nprebindPlugins: ['*', -node-state]\n"+
			"namespaces:\n- {names: [%s], mode: Audit}\n- {names: [%s], mode: 'Off'}\n- {names: [%s], rejectAfter: 1s}\n", audited.ns, ignored.ns, rejected.ns))
		pod := w.bound(t)
		assert.Contains(t, pod.Annotations, "bind-info.prebind.dev/calls")
		assert.Contains(t, pod.Annotations, "topology.prebind.dev/zone")
	})
	require.NoError(t, waiting.end(bound), "the repeated call does not wait for a disabled plugin")
	waiting.untilBound()

	t.Run("audit mode should report rejections without refusing binds", func(t *testing.T) {
		b := audited
		b.t = t
		b.pod(byHand, "missing")
		x, code := b.explain("node-1")
		assert.Equal(t, 0, code, "the bind should be allowed")
		assert.EqualValues(t, "refuse", x.Prebind.Verdict)
		client, warned := b.listeningClient()
		b.client = client
		require.NoError(t, b.bindByHand(b.binding("node-1")))
		assert.Empty(t, b.untilBound().Annotations, "the pod should have no annotations of Prebind")
		assert.Regexp(t, `^Warning: .*audit: the bind would be rejected \(refused\): volumebinding:.*\n$`, warned.String())
		b.untilEvent("BindAudited", "would be rejected", b.ns+"/missing")
		assert.Contains(t, b.decisions(), "audited")
	})

	t.Run("binds of a disabled namespace should be ignored", func(t *testing.T) {
		b := ignored
		b.t = t
		b.pod(byHand, "missing")
		require.NoError(t, b.bindByHand(b.binding("node-1")))
		assert.Empty(t, b.untilBound().Annotations)
		assert.Equal(t, []string{"passed-through"}, b.decisions())
	})

	t.Run("a bind that waits should be rejected, and continue", func(t *testing.T) {
		b := rejected
		b.t = t
		b.claim("data", b.dynamic("5s"))
		b.pod(byHand, "data")
		b.assertRefused(b.bindByHand(b.binding("node-1")), "waiting for provisioning", "Prebind continues to prepare it")
		require.Eventually(t, func() bool { return b.bindByHand(b.binding("node-1")) == nil }, patience, again, "a later Binding should be allowed")
		b.untilBound()
	})
}

const (
	csiDriver   = "csi.e2e.prebind.dev"
	agents      = "agents"
	nodeReadyOn = configHead + "prebindPlugins: ['*', node-ready]\narguments:\n  node-ready:\n    agents:\n    - {namespace: agents, selector: app=cni}\n"
	// aMoment is the maximum time between the change of a node and the bind. A client repeats a call after one second at first, and
	// later after up to five seconds. The rest is for a busy machine.
	aMoment = time.Minute
)

// testNodeReady checks that a bind waits for the CSI driver or the agent of a node, and continues within a moment. The plugin node-ready is
// off by default.
func testNodeReady(t *testing.T, w *world) {
	w.configure(t, nodeReadyOn)
	w.createAgents(t)
	cases := map[string]struct {
		early, late func(b *bench, node string)
		says        func(node string) []string
	}{
		"driver": {early: (*bench).startAgent, late: (*bench).registerDriver, says: func(node string) []string {
			return []string{"node-ready: CSINode " + node, "waiting for CSI driver " + csiDriver + " to register on the node"}
		}},
		"agent": {early: (*bench).registerDriver, late: (*bench).startAgent, says: func(node string) []string {
			return []string{"node-ready: DaemonSet agents/cni", "waiting for the pod of DaemonSet agents/cni on " + node + " to be Ready"}
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w, nil)
			node, toleration := b.ownNode("late")
			tc.early(b, node)
			b.csiClaim()
			b.podWith(cluster.DefaultScheduler, toleration, b.steered(), gen.UsesClaim("data"))
			b.untilEvent(append(tc.says(node), "WaitingForPreBind")...)
			b.assertNotBound()
			tc.late(b, node)
			began := time.Now()
			pod := b.untilBound()
			assert.Less(t, time.Since(began), aMoment)
			t.Logf("bound %s after the node became ready", time.Since(began).Round(time.Millisecond))
			assert.Equal(t, node, pod.Spec.NodeName)
			b.assertTopology(pod)
			b.assertNeverFailed()
		})
	}
}

// createAgents creates the CSIDriver, and the DaemonSet of the agent, whose pods tolerate all taints.
func (w *world) createAgents(t *testing.T) {
	t.Helper()
	d := gen.CSIDriver(csiDriver, false)
	d.Spec.AttachRequired = new(false)
	_, err := w.client.StorageV1().CSIDrivers().Create(t.Context(), d, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = w.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agents}}, metav1.CreateOptions{})
	require.NoError(t, err)
	labels := map[string]string{"app": "cni"}
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "cni"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "main", Image: gen.Image}},
		}},
	}}
	_, err = w.client.AppsV1().DaemonSets(agents).Create(t.Context(), ds, metav1.CreateOptions{})
	require.NoError(t, err)
}

// registerDriver registers the CSI driver on the node, like its kubelet.
func (b *bench) registerDriver(node string) {
	b.t.Helper()
	d := storagev1.CSINodeDriver{Name: csiDriver, NodeID: node}
	_, err := b.client.StorageV1().CSINodes().Create(b.t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{d}},
	}, metav1.CreateOptions{})
	require.NoError(b.t, err)
}

// startAgent reports that the agent's pod on the node is Ready, like its kubelet. It waits until kube-controller-manager has created
// the pod and kube-scheduler has bound it.
func (b *bench) startAgent(node string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		list, err := b.client.CoreV1().Pods(agents).List(b.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		require.NoError(c, err)
		require.NotEmpty(c, list.Items)
		_, err = b.client.CoreV1().Pods(agents).Patch(b.t.Context(), list.Items[0].Name, types.StrategicMergePatchType,
			[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
		require.NoError(c, err)
	}, patience, again, "the agent should be bound to %s", node)
}

// csiClaim creates the claim "data" that is bound to a volume of the driver.
func (b *bench) csiClaim() {
	b.t.Helper()
	pv := gen.Volume("data-"+b.ns, gen.VolumeSource(corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: b.ns},
	}))
	_, err := b.client.CoreV1().PersistentVolumes().Create(b.t.Context(), pv, metav1.CreateOptions{})
	require.NoError(b.t, err)
	claim := gen.Claim("data", gen.InNamespace(b.ns), gen.OfClass(""), gen.NamesVolume(pv.Name))
	_, err = b.client.CoreV1().PersistentVolumeClaims(b.ns).Create(b.t.Context(), claim, metav1.CreateOptions{})
	require.NoError(b.t, err)
	untilRead(b, b.client.CoreV1().PersistentVolumeClaims(b.ns).Get, "data", "bound", func(claim *corev1.PersistentVolumeClaim) bool {
		return metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted)
	})
}

// prefersNot creates the pod "pod". If kube-scheduler can, it chooses another node than the given one.
func (b *bench) prefersNot(node string, options ...gen.PodOption) {
	b.t.Helper()
	pod := gen.Pod("pod", append([]gen.PodOption{gen.InNamespace(b.ns), gen.Scheduler(cluster.DefaultScheduler), gen.EndsAtOnce()}, options...)...)
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{node}},
		}},
	}}}}
	_, err := b.client.CoreV1().Pods(b.ns).Create(b.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(b.t, err)
}

// starts observes the pods of a node in the order of the API server, and reports their status like a kubelet.
type starts struct {
	*bench

	mu sync.Mutex
	// starting and seen contain the names of pods. most is the maximum of starting.
	starting, seen map[string]bool
	most           int
}

// observe begins with a node without pods.
func (b *bench) observe(node string) *starts {
	b.t.Helper()
	s := &starts{bench: b, starting: map[string]bool{}, seen: map[string]bool{}}
	events, err := b.client.CoreV1().Pods(b.ns).Watch(b.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	require.NoError(b.t, err)
	var reads sync.WaitGroup
	reads.Go(func() {
		for e := range events.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				s.note(pod, e.Type == watch.Deleted)
			}
		}
	})
	b.t.Cleanup(func() {
		events.Stop()
		reads.Wait()
	})
	return s
}

func (s *starts) note(pod *corev1.Pod, deleted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if deleted || pod.Status.Phase != corev1.PodPending {
		delete(s.starting, pod.Name)
		return
	}
	s.starting[pod.Name], s.seen[pod.Name] = true, true
	s.most = max(s.most, len(s.starting))
}

// patch is safe for concurrent use.
func (b *bench) patch(pod, patch string) error {
	_, err := b.client.CoreV1().Pods(b.ns).Patch(context.WithoutCancel(b.t.Context()), pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// runOne sets one of the starting pods to Running.
func (s *starts) runOne() {
	s.t.Helper()
	s.mu.Lock()
	name := ""
	for name = range s.starting {
		break
	}
	s.mu.Unlock()
	require.NoError(s.t, s.patch(name, `{"status":{"phase":"Running"}}`))
}

func (s *starts) counts() (seen, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen), s.most
}

// untilSeen waits until this number of pods has been bound.
func (s *starts) untilSeen(want int) {
	s.t.Helper()
	require.EventuallyWithT(s.t, func(c *assert.CollectT) {
		seen, _ := s.counts()
		assert.Equal(c, want, seen)
	}, patience, again/10, "%d pods should be bound to the node", want)
}

// waitingForStart returns the number of pods with an event that they wait for a slot.
func (b *bench) waitingForStart() int {
	list, err := b.client.CoreV1().Events(b.ns).List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		return -1
	}
	pods := map[string]bool{}
	for _, e := range list.Items {
		if e.Reason == "WaitingForPreBind" && strings.Contains(e.Message, "start-limit: ") && strings.Contains(e.Message, "waiting for pods on the node to start") {
			pods[e.InvolvedObject.Name] = true
		}
	}
	return len(pods)
}

// testStartLimit binds four pods to a node on which two may start. Each pod that runs lets one more pod start. It stops one of two replicas,
// because one replica enforces the limit exactly.
func testStartLimit(t *testing.T, w *world) {
	const limit, all = 2, 4
	require.NoError(t, w.prebind.Remove(w.prebind.Replicas()[1]))
	w.configure(t, configHead+"prebindPlugins: ['*', start-limit]\narguments:\n  start-limit: {limit: 2, wait: 3m, startTimeout: 1h}\n")
	w.untilMetric(t, "prebind_start_limit_replicas 1")
	b := newBench(t, w, nil)
	node, toleration := b.ownNode("turns")
	s := b.observe(node)
	for i := range all {
		_, err := b.createPod(fmt.Sprintf("pod-%d", i), cluster.DefaultScheduler, toleration, b.steered())
		require.NoError(t, err)
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, all-limit, b.waitingForStart()) }, patience, again, "the other pods should wait")
	for bound := limit; bound < all; bound++ {
		s.untilSeen(bound)
		s.runOne()
	}
	s.untilSeen(all)
	_, most := s.counts()
	assert.Equal(t, limit, most, "pods that started at the same time")
	assert.False(t, says(b.allEvents(), "FailedScheduling"), "no bind should fail: %q", b.allEvents())
}
