// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

const (
	csiDriver   = "csi.e2e.prebind.dev"
	card        = "gpu.e2e.prebind.dev/card"
	agents      = "agents"
	nodeReadyOn = configHead + "prebindPlugins: ['*', node-ready]\narguments:\n  node-ready:\n    conditions: [NetworkReady]\n    agents:\n    - {namespace: agents, selector: app=cni}\n"
	// aMoment is the maximum time between the change of a node and the bind. A client repeats a call after one second at first, and
	// later after up to five seconds. The rest is for a busy machine.
	aMoment = time.Minute
)

// testNodeReady checks the plugin node-ready, which is off by default.
func testNodeReady(t *testing.T, w *world) {
	w.configure(t, nodeReadyOn)
	w.createAgents(t)
	t.Run("the node becomes ready", func(t *testing.T) { testNodeBecomesReady(t, w) })
	t.Run("kube-scheduler chooses another node", func(t *testing.T) { testNodeStaysUnready(t, w) })
}

// createAgents creates the CSIDriver, and the DaemonSet of the agent.
func (w *world) createAgents(t *testing.T) {
	t.Helper()
	d := gen.CSIDriver(csiDriver, false)
	d.Spec.AttachRequired = new(false)
	_, err := w.client.StorageV1().CSIDrivers().Create(t.Context(), d, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = w.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agents}}, metav1.CreateOptions{})
	require.NoError(t, err)
	w.createDaemonSet(t, agents, "cni", nil)
}

// createDaemonSet creates a DaemonSet whose pods tolerate all taints and have the label app with its name.
func (w *world) createDaemonSet(t *testing.T, namespace, name string, nodeSelector map[string]string) {
	t.Helper()
	labels := map[string]string{"app": name}
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			NodeSelector: nodeSelector,
			Containers:   []corev1.Container{{Name: "main", Image: gen.Image}},
		}},
	}}
	_, err := w.client.AppsV1().DaemonSets(namespace).Create(t.Context(), ds, metav1.CreateOptions{})
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

// addCards adds an extended resource to the node, like a device plugin.
func (b *bench) addCards(node string) {
	b.t.Helper()
	b.patchNode(node, `{"status":{"capacity":{"`+card+`":"4"},"allocatable":{"`+card+`":"4"}}}`, "status")
}

// prepare prepares the node except for one part.
func (b *bench) prepare(node, except string) {
	b.t.Helper()
	if except != "driver" {
		b.registerDriver(node)
	}
	if except != "agent" {
		b.startAgent(node)
	}
	if except != "condition" {
		b.report(node, "NetworkReady", "True", "Test")
	}
	if except != "resource" {
		b.addCards(node)
	}
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
	b.untilClaimBound()
}

// readyTimeout sets the limit of the wait.
func readyTimeout(limit string) gen.Meta {
	return gen.Annotation("node-ready.prebind.dev/timeout", limit)
}

// podOption is an option of a pod.
type podOption func(*corev1.Pod)

// createWith creates the pod "pod" after it has applied the functions.
func (b *bench) createWith(scheduler string, options []gen.PodOption, change ...podOption) {
	b.t.Helper()
	pod := gen.Pod("pod", append([]gen.PodOption{gen.InNamespace(b.ns), gen.Scheduler(scheduler), gen.EndsAtOnce()}, options...)...)
	for _, f := range change {
		f(pod)
	}
	_, err := b.client.CoreV1().Pods(b.ns).Create(b.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(b.t, err)
}

func withCard(pod *corev1.Pod) {
	list := corev1.ResourceList{card: resource.MustParse("1")}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
}

// A bind waits for each part of a node, and continues within a moment.
func testNodeBecomesReady(t *testing.T, w *world) {
	cases := map[string]struct {
		except    string
		scheduler string
		claim     bool
		pod       []podOption
		ready     func(b *bench, node string)
		says      func(node string) []string
	}{
		"driver of a claim": {
			except: "driver", scheduler: cluster.DefaultScheduler, claim: true, ready: func(b *bench, node string) { b.registerDriver(node) },
			says: func(node string) []string {
				return []string{"node-ready: CSINode " + node, "waiting for CSI driver " + csiDriver + " to register on the node"}
			},
		},
		"agent": {
			except: "agent", scheduler: byHand, ready: func(b *bench, node string) { b.startAgent(node) },
			says: func(node string) []string {
				return []string{"node-ready: DaemonSet agents/cni", "waiting for the pod of DaemonSet agents/cni on " + node + " to be Ready"}
			},
		},
		"condition": {
			except: "condition", scheduler: cluster.DefaultScheduler, ready: func(b *bench, node string) { b.report(node, "NetworkReady", "True", "Test") },
			says: func(node string) []string {
				return []string{"node-ready: Node " + node, "waiting for the node condition NetworkReady to be True (it is not set)"}
			},
		},
		// kube-scheduler does not choose a node without the resource.
		"extended resource": {
			except: "resource", scheduler: byHand, pod: []podOption{withCard}, ready: func(b *bench, node string) { b.addCards(node) },
			says: func(node string) []string {
				return []string{"node-ready: Node " + node, "waiting for extended resource " + card + " on the node (1 requested, 0 allocatable)"}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w, nil)
			node, toleration := b.ownNode("late")
			b.prepare(node, tc.except)
			options := []gen.PodOption{toleration, b.steered()}
			if tc.claim {
				b.csiClaim()
				options = append(options, gen.UsesClaim("data"))
			}
			b.createWith(tc.scheduler, options, tc.pod...)
			var bound <-chan error
			if tc.scheduler == byHand {
				bound = b.beginBind(node)
			}
			b.untilEvent(append(tc.says(node), "WaitingForPreBind")...)
			assert.Empty(t, b.until("still unbound", notBound).Spec.NodeName)
			tc.ready(b, node)
			began := time.Now()
			pod := b.untilBound()
			assert.Less(t, time.Since(began), aMoment)
			t.Logf("bound %s after the node became ready", time.Since(began).Round(time.Millisecond))
			assert.Equal(t, node, pod.Spec.NodeName)
			b.assertTopology(pod)
			b.assertNeverFailed()
			if bound != nil {
				require.NoError(t, b.end(bound))
			}
		})
	}
	t.Run("the node has everything", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, w, nil)
		node, toleration := b.ownNode("ready")
		b.prepare(node, "")
		b.csiClaim()
		b.createWith(byHand, []gen.PodOption{toleration, gen.UsesClaim("data")}, withCard)
		b.untilAllowed(node)
		require.NoError(t, b.bindByHand(b.binding(node)))
		assert.NotContains(t, b.decisions(), "waiting")
	})
}

// untilAllowed waits until a dry run of the bind waits for nothing, so that all replicas have observed the node.
func (b *bench) untilAllowed(node string) {
	b.t.Helper()
	client, warned := b.listeningClient()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		for range 2 * len(b.prebind.Replicas()) {
			before := len(warned.all())
			err := client.CoreV1().Pods(b.ns).Bind(b.t.Context(), b.binding(node), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.NoError(c, err)
			assert.Empty(c, warned.all()[before:])
		}
	}, patience, again, "the node should be ready")
}

// After the limit, the bind is rejected with one clear line, and kube-scheduler chooses another node.
func testNodeStaysUnready(t *testing.T, w *world) {
	b := newBench(t, w, nil)
	unready, toleration := b.ownNode("unready")
	b.prepare(unready, "driver")
	b.csiClaim()
	b.createWith(cluster.DefaultScheduler, []gen.PodOption{toleration, b.steered(), gen.UsesClaim("data"), readyTimeout("10s")}, func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{unready}},
			}},
		}}}}
	})
	b.untilEvent("WaitingForPreBind", "node-ready: CSINode "+unready)
	other := "other-" + b.ns
	require.NoError(t, cluster.CreateNodes(t.Context(), b.client, cluster.Node(other)))
	b.prepare(other, "")
	b.allow(other)
	assert.Equal(t, other, b.untilBound().Spec.NodeName)
	b.untilEvent("FailedScheduling", "node-ready: CSINode "+unready, "still waiting for CSI driver "+csiDriver+" to register on the node after 10s; choose another node")
}

// untilDaemonBound waits until the DaemonSet has a pod on the node.
func (b *bench) untilDaemonBound(name, node string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		list, err := b.client.CoreV1().Pods(b.ns).List(b.t.Context(), metav1.ListOptions{LabelSelector: "app=" + name, FieldSelector: "spec.nodeName=" + node})
		require.NoError(c, err)
		assert.NotEmpty(c, list.Items)
	}, patience, again, "%s should be bound to the new node %s", name, node)
}
