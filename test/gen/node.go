// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package gen

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeOption is an option of Node.
type NodeOption interface{ applyNode(node *corev1.Node) }

type nodeFunc func(*corev1.Node)

func (f nodeFunc) applyNode(o *corev1.Node) { f(o) }

// Node makes a node with its hostname label.
func Node(name string, options ...NodeOption) *corev1.Node {
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
	}
	for _, o := range options {
		o.applyNode(node)
	}
	return node
}

// Zone sets the well-known zone label.
func Zone(zone string) Meta { return Label(corev1.LabelTopologyZone, zone) }

// Region sets the well-known region label.
func Region(region string) Meta { return Label(corev1.LabelTopologyRegion, region) }

// Ready is a node that a scheduler takes: ready, with room for these many pods.
func Ready(pods int64) NodeOption {
	return nodeFunc(func(node *corev1.Node) {
		room := corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("16"),
			corev1.ResourceMemory: resource.MustParse("64Gi"),
			corev1.ResourcePods:   *resource.NewQuantity(pods, resource.DecimalSI),
		}
		node.Status.Capacity, node.Status.Allocatable = room, room.DeepCopy()
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "made by a test",
		}}
	})
}
