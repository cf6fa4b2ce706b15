// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// The pods of a node can have any size in total, and a response of the API server has few of them.
func TestEachRunningOn(t *testing.T) {
	const maxResponse, largestPod = 32 << 20, 3 << 19
	server := fakeapi.New(gen.Pod("other", gen.BoundTo("node-b")), gen.Pod("pending"))
	var want, got []string
	for i := range 50 {
		name := fmt.Sprintf("pod-%02d", i)
		server.Put(gen.Pod(name, gen.BoundTo("node-a")))
		want = append(want, name)
	}
	for i, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		ended := gen.Pod(fmt.Sprintf("ended-%d", i), gen.BoundTo("node-a"))
		ended.Status.Phase = phase
		server.Put(ended)
	}
	api := server.Connect()
	api.Before = func(c fakeapi.Call) error {
		assert.Positive(t, c.List.Limit)
		assert.LessOrEqual(t, c.List.Limit, int64(maxResponse/largestPod))
		return nil
	}
	require.NoError(t, EachRunningOn(t.Context(), api, "node-a", func(pod *metav1.PartialObjectMetadata) { got = append(got, pod.Name) }))
	assert.Equal(t, want, got)
}

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
