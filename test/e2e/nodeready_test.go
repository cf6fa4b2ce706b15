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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

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
