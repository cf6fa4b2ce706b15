// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// nodePlugins is the variant with the plugins that concern the node: node-ready, start-limit and announce. The variant
// prebind runs without them.
const nodePlugins = "node-plugins"

const (
	agentNamespace = metav1.NamespaceSystem
	// agents is the number of agents that each node needs.
	agents = 5
	// startsAtOnce exceeds the number of pods per node, because no kubelet starts them and no bind has to wait.
	startsAtOnce = 1000
)

// withNodePlugins returns an installation that compares the plugins of nodes with none of them.
func withNodePlugins() shipped {
	on := []string{
		"--prebind-plugins=*,announce,node-ready,start-limit",
		"--node-ready-conditions=Ready",
		fmt.Sprintf("--start-limit-limit=%d", startsAtOnce),
	}
	for i := range agents {
		on = append(on, fmt.Sprintf("--node-ready-agents=%s/app=%s", agentNamespace, agent(i)))
	}
	return shipped{
		components: []string{"plugins/node-ready", "plugins/announce"},
		args:       []string{"--prebind-plugins=*"},
		second:     on, secondVariant: nodePlugins,
	}
}

// agent returns the name of an agent's DaemonSet, which is also its label app.
func agent(i int) string { return fmt.Sprintf("agent-%d", i) }

// BenchmarkNodePlugins measures the latency of a bind that does not have to wait, and its CPU time, with the plugins of nodes
// and without them. Each node has its agents and CSI drivers.
func BenchmarkNodePlugins(b *testing.B) {
	nodes := cluster.Nodes("node", 300)
	r := newRivals(b, cluster.Options{WithoutScheduler: true, WithoutProvisioner: true}, nodes, withNodePlugins(), prebind, nodePlugins)
	r.targets = len(nodes)
	require.NoError(b, cluster.WaitForPods(b.Context(), r.client, prebind, nodePlugins, agentNamespace))
	// The controller of DaemonSets would replace the pods of the agents.
	require.NoError(b, r.cluster.Process(cluster.ControllerManager).Stop())
	require.NoError(b, r.addAgents(b.Context(), nodes))
	takeTurns(b, "node-plugins", func(ctx context.Context, out *results, variant string, round int) error {
		if err := r.forgetLeases(ctx); err != nil {
			return err
		}
		return r.round(ctx, out, variant, round, size{warmUp: 200, alone: 600, together: 600, clients: 16})
	}, prebind, nodePlugins)
}

// addAgents creates the DaemonSets of the agents and their ready pods on each node, and the CSINodes.
func (r *rivals) addAgents(ctx context.Context, nodes []*corev1.Node) error {
	sets := make([]*appsv1.DaemonSet, agents)
	for i := range sets {
		labels := map[string]string{"app": agent(i)}
		pod := gen.Pod("", gen.Tolerates(""))
		var err error
		sets[i], err = r.client.AppsV1().DaemonSets(agentNamespace).Create(ctx, &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: agent(i)},
			Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return inParallel(ctx, 32, len(nodes), func(ctx context.Context, i int) error {
		if _, err := r.client.StorageV1().CSINodes().Create(ctx, csiNode(nodes[i].Name), metav1.CreateOptions{}); err != nil {
			return err
		}
		for _, set := range sets {
			if err := r.createRunning(ctx, agentPod(set, nodes[i].Name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// agentPod returns the pod of the DaemonSet on the node, as the controller of DaemonSets creates it.
func agentPod(set *appsv1.DaemonSet, node string) *corev1.Pod {
	pod := gen.Pod(set.Name+"-"+node, gen.InNamespace(set.Namespace), gen.BoundTo(node), gen.EndsAtOnce(), gen.Tolerates(""),
		gen.Label("app", set.Name), gen.Label("controller-revision-hash", "6d4cf56db6"), gen.Label("pod-template-generation", "1"))
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	return pod
}

// createRunning creates a pod that runs and is ready.
func (r *rivals) createRunning(ctx context.Context, made *corev1.Pod) error {
	pod, err := r.client.CoreV1().Pods(made.Namespace).Create(ctx, made, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	now := metav1.Now()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now, HostIP: "192.0.2.1", PodIP: "10.64.0.1", QOSClass: pod.Status.QOSClass,
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true, Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	_, err = r.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}
