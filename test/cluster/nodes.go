// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
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

// InNodePool adds what the nodes of a managed node pool have: about 4 KB of labels, annotations, addresses, resources, and the conditions of
// node-problem-detector.
func InNodePool() NodeOption {
	return func(node *corev1.Node) {
		name := node.Name
		for _, key := range []string{
			"beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type", "beta.kubernetes.io/os", "cloud.example.com/boot-disk",
			"cloud.example.com/container-runtime", "cloud.example.com/cpu-scaling-level", "cloud.example.com/logging-variant",
			"cloud.example.com/max-pods-per-node", "cloud.example.com/memory-scaling-level", "cloud.example.com/node-pool",
			"cloud.example.com/os-distribution", "cloud.example.com/provisioning", "cloud.example.com/stack-type",
			"cloud.example.com/machine-family", "cloud.example.com/private-node", "failure-domain.beta.kubernetes.io/region",
			"failure-domain.beta.kubernetes.io/zone", corev1.LabelInstanceTypeStable,
		} {
			node.Labels[key] = "standard-4"
		}
		node.Annotations = map[string]string{
			"cloud.example.com/instance-id":                          name + "-0123456789",
			"cloud.example.com/last-applied-labels":                  strings.Repeat("cloud.example.com/boot-disk=balanced,", 8),
			"csi.volume.kubernetes.io/nodeid":                        `{"disk.csi.example.com":"projects/shop/zones/zone-1/instances/` + name + `"}`,
			"node.alpha.kubernetes.io/ttl":                           "0",
			"volumes.kubernetes.io/controller-managed-attach-detach": "true",
		}
		node.Spec.ProviderID = "cloud://shop/zone-1/" + name
		for _, list := range []corev1.ResourceList{node.Status.Capacity, node.Status.Allocatable} {
			for _, key := range []corev1.ResourceName{corev1.ResourceEphemeralStorage, "hugepages-1Gi", "hugepages-2Mi"} {
				list[key] = resource.MustParse("47060071478")
			}
		}
		for _, kind := range []corev1.NodeConditionType{
			"FrequentKubeletRestart", "FrequentContainerdRestart", "FrequentUnregisterNetDevice", "KernelDeadlock", "ReadonlyFilesystem",
			"CorruptDockerOverlay2", corev1.NodeNetworkUnavailable,
		} {
			node.Status.Conditions = append(node.Status.Conditions, condition(kind, corev1.ConditionFalse, "No"+string(kind)))
		}
		for i := range node.Status.Conditions {
			c := &node.Status.Conditions[i]
			c.Message = string(c.Type) + " is as expected"
		}
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: name + ".shop.internal"},
			{Type: corev1.NodeInternalDNS, Address: name + ".shop.internal"},
		}
		node.Status.NodeInfo = corev1.NodeSystemInfo{
			MachineID: name + "-0123456789abcdef", SystemUUID: name + "-01234567-89ab-cdef", BootID: name + "-01234567-89ab-cdef",
			KernelVersion: "6.6.72", OSImage: "Container OS", ContainerRuntimeVersion: "containerd://1.7.24", KubeletVersion: "v1.34.1",
			OperatingSystem: "linux", Architecture: "amd64",
		}
		disk := corev1.UniqueVolumeName("kubernetes.io/csi/disk.csi.example.com^projects/shop/disks/pvc-" + name)
		node.Status.VolumesInUse, node.Status.VolumesAttached = []corev1.UniqueVolumeName{disk}, []corev1.AttachedVolume{{Name: disk}}
	}
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
