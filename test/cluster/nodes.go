// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// RackLabel is the label of nodes for the rack that they are in: a fact about a
// node that Kubernetes knows nothing of.
const RackLabel = "example.com/rack"

// The layout of [Nodes]: zones and racks take turns.
const (
	nodeRegion   = "region-1"
	nodeZones    = 3
	racksPerZone = 2
)

// nodeTimeout bounds the wait in [CreateNodes] if its context does not.
const nodeTimeout = 2 * time.Minute

// createAtOnce is how many nodes [CreateNodes] makes at the same time.
const createAtOnce = 16

// NodeOption changes a node that [Node] or [Nodes] makes.
type NodeOption func(*corev1.Node)

// WithLabels sets labels.
func WithLabels(labels map[string]string) NodeOption {
	return func(node *corev1.Node) { maps.Copy(node.Labels, labels) }
}

// WithResources sets capacity and allocatable, resource by resource.
func WithResources(resources corev1.ResourceList) NodeOption {
	resources = resources.DeepCopy()
	return func(node *corev1.Node) {
		maps.Copy(node.Status.Capacity, resources)
		maps.Copy(node.Status.Allocatable, resources)
	}
}

// WithTaints adds taints.
func WithTaints(taints ...corev1.Taint) NodeOption {
	return func(node *corev1.Node) { node.Spec.Taints = append(node.Spec.Taints, taints...) }
}

// Node returns a ready node in zone-1, rack-1-1, with 32 CPUs, 128 GiB of memory
// and room for 110 pods, changed by the options in order. It is not created; see
// [CreateNodes].
func Node(name string, opts ...NodeOption) *corev1.Node {
	return node(name, 0, opts)
}

// Nodes returns n nodes as Node makes them, called PREFIX-1 to PREFIX-n, which
// take turns over zone-1 to zone-3 and over two racks in each zone, such as
// rack-3-2.
func Nodes(prefix string, n int, opts ...NodeOption) []*corev1.Node {
	out := make([]*corev1.Node, n)
	for i := range out {
		out[i] = node(fmt.Sprintf("%s-%d", prefix, i+1), i, opts)
	}
	return out
}

func node(name string, index int, opts []NodeOption) *corev1.Node {
	zone := index%nodeZones + 1
	rack := index/nodeZones%racksPerZone + 1
	resources := func() corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("32"),
			corev1.ResourceMemory: resource.MustParse("128Gi"),
			corev1.ResourcePods:   resource.MustParse("110"),
		}
	}
	out := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname:       name,
				corev1.LabelOSStable:       "linux",
				corev1.LabelArchStable:     "amd64",
				corev1.LabelTopologyZone:   fmt.Sprintf("zone-%d", zone),
				corev1.LabelTopologyRegion: nodeRegion,
				RackLabel:                  fmt.Sprintf("rack-%d-%d", zone, rack),
			},
		},
		Status: corev1.NodeStatus{
			Capacity:    resources(),
			Allocatable: resources(),
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
			},
		},
	}
	for _, opt := range opts {
		opt(out)
	}
	return out
}

// condition leaves the times out: CreateNodes sets them.
func condition(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
	return corev1.NodeCondition{Type: kind, Status: status, Reason: reason}
}

// CreateNodes creates the nodes and returns when pods can be scheduled to them:
// kube-controller-manager has removed the not-ready taint of new nodes. It gives up when ctx ends, or after two minutes. The given nodes are not changed. The nodes stay ready for a day.
func CreateNodes(ctx context.Context, client kubernetes.Interface, nodes ...*corev1.Node) error {
	ctx, cancel := context.WithTimeoutCause(ctx, nodeTimeout,
		fmt.Errorf("still there after %s: is kube-controller-manager running?", nodeTimeout))
	defer cancel()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(createAtOnce)
	for _, node := range nodes {
		group.Go(func() error { return createNode(groupCtx, client, node) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return waitSchedulable(ctx, client, nodes)
}

func createNode(ctx context.Context, client kubernetes.Interface, node *corev1.Node) error {
	created, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create node %s: %w", node.Name, err)
	}
	created.Status = *node.Status.DeepCopy()
	now := metav1.Now()
	for i := range created.Status.Conditions {
		created.Status.Conditions[i].LastHeartbeatTime = now
		created.Status.Conditions[i].LastTransitionTime = now
	}
	// Not by resourceVersion: controllers already write to the new node.
	created.ResourceVersion = ""
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("set the status of node %s: %w", node.Name, err)
	}
	return nil
}

// waitSchedulable waits until none of the nodes has the not-ready taint.
func waitSchedulable(ctx context.Context, client kubernetes.Interface, nodes []*corev1.Node) error {
	waiting := make(map[string]bool, len(nodes))
	for _, node := range nodes {
		waiting[node.Name] = true
	}
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, node := range list.Items {
			if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady }) {
				delete(waiting, node.Name)
			}
		}
		return len(waiting) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the not-ready taint is gone from %d of %d nodes: %w", len(waiting), len(nodes), cmp.Or(context.Cause(ctx), err))
	}
	return nil
}
