// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeready

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/prebind/prebind/binder/framework"
)

// agent is a parsed Agent.
type agent struct {
	namespace     string
	podsSelector  labels.Selector
	nodesSelector labels.Selector
	// unused logs once that no DaemonSet matches.
	unused sync.Once
}

// missing returns the DaemonSets of the agent that should run on the node and have no Ready pod there.
func (a *agent) missing(ctx context.Context, cache framework.Reader, node *corev1.Node) ([]framework.Wait, error) {
	if !a.nodesSelector.Matches(labels.Set(node.Labels)) {
		return nil, nil
	}
	var daemons appsv1.DaemonSetList
	if err := cache.List(ctx, &daemons, a.daemons().Where("")); err != nil {
		return nil, framework.FromAPI(framework.Object{Kind: "Namespace", Name: a.namespace}, "listing its DaemonSets", err)
	}
	var pods corev1.PodList
	if err := cache.List(ctx, &pods, a.pods().Where(node.Name)); err != nil {
		return nil, framework.FromAPI(framework.Object{Kind: "Node", Name: node.Name}, "listing its agents", err)
	}
	var all []framework.Wait
	matching := slices.DeleteFunc(daemons.Items, func(ds appsv1.DaemonSet) bool { return !a.podsSelector.Matches(labels.Set(ds.Spec.Template.Labels)) })
	for i := range matching {
		ds := &matching[i]
		ready := slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
			return metav1.IsControlledBy(&pod, ds) && isReady(&pod) && !ranOnEarlierNode(&pod, node)
		})
		if !ready && shouldRun(ds, node) {
			object := framework.Object{Kind: "DaemonSet", Namespace: ds.Namespace, Name: ds.Name}
			all = append(all, framework.Wait{Object: object, For: fmt.Sprintf("the pod of %s on %s to be Ready", object, node.Name)})
		}
	}
	if len(matching) == 0 {
		a.unused.Do(func() {
			klog.InfoS("No bind waits for an agent of node-ready: no DaemonSet of its namespace creates pods that match the selector",
				"namespace", a.namespace, "selector", a.podsSelector.String())
		})
	}
	return all, nil
}

// isReady returns whether the pod is Ready and is not being deleted.
func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// ranOnEarlierNode returns whether the kubelet of an earlier node with the same name has set the status of the pod: its host IP is not an address
// of the node. The age of the pod does not show that: if a node is deleted and its kubelet registers it again, the pods continue to run.
func ranOnEarlierNode(pod *corev1.Pod, node *corev1.Node) bool {
	host, others := net.ParseIP(pod.Status.HostIP), false
	for _, address := range node.Status.Addresses {
		ip := net.ParseIP(address.Address)
		if ip.Equal(host) {
			return false
		}
		others = others || ip != nil
	}
	return host != nil && others
}

// shouldRun returns whether the DaemonSet controller creates a pod on the node. It follows
// NodeShouldRunDaemonPod of k8s.io/kubernetes/pkg/controller/daemon.
func shouldRun(ds *appsv1.DaemonSet, node *corev1.Node) bool {
	template := &ds.Spec.Template.Spec
	if ds.DeletionTimestamp != nil || template.NodeName != "" && template.NodeName != node.Name {
		return false
	}
	// As upstream, an affinity that cannot be parsed does not match.
	if fits, _ := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *template}).Match(node); !fits {
		return false
	}
	tolerations := slices.Concat(template.Tolerations, daemonTolerations)
	if template.HostNetwork {
		tolerations = append(tolerations, toleration(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))
	}
	repels := func(taint *corev1.Taint) bool { return taint.Effect != corev1.TaintEffectPreferNoSchedule }
	_, repelled := schedulinghelpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, tolerations, repels, true)
	return !repelled
}

// daemonTolerations are those that AddOrUpdateDaemonPodTolerations of k8s.io/kubernetes/pkg/controller/daemon/util adds to
// every pod.
var daemonTolerations = []corev1.Toleration{
	toleration(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute),
	toleration(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute),
	toleration(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule),
	toleration(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule),
	toleration(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule),
	toleration(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule),
}

func toleration(key string, effect corev1.TaintEffect) corev1.Toleration {
	return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
}
