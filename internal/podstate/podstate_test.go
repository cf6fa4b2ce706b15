// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/gen"
)

func TestIsSystem(t *testing.T) {
	class := func(name string) *corev1.Pod {
		pod := gen.Pod("a")
		pod.Spec.PriorityClassName = name
		return pod
	}
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		want   bool
	}{
		"Plain":      {reason: "the pod has nothing special", pod: gen.Pod("a")},
		"ReplicaSet": {reason: "its scheduler can choose another node", pod: gen.Pod("a", gen.OwnedBy("ReplicaSet", "web", "1"))},
		"DaemonSet":  {reason: "the pod belongs to this node", pod: gen.Pod("a", gen.OwnedBy("DaemonSet", "agent", "1")), want: true},
		"Static":     {reason: "the kubelet does not wait", pod: gen.Pod("a", gen.OwnedBy("Node", "node-a", "1")), want: true},
		"Mirror":     {reason: "the kubelet does not wait", pod: gen.Pod("a", gen.Annotation(corev1.MirrorPodAnnotationKey, "hash")), want: true},
		"Node":       {reason: "the node does not work without the pod", pod: class("system-node-critical"), want: true},
		"Cluster":    {reason: "the cluster does not work without the pod", pod: class("system-cluster-critical"), want: true},
		"High":       {reason: "another class does not matter", pod: class("high")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, IsSystem(tc.pod), tc.reason) })
	}
}
