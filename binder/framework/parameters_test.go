// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/gen"
)

func TestInvalidParameters(t *testing.T) {
	var all []*Error
	for i := range 7 {
		p := Parameter{Annotation: "a.prebind.dev/" + strconv.Itoa(i), On: Object{Kind: "Pod", Namespace: "default", Name: "web"}}
		all = append(all, p.Invalid("must be %d", i))
	}
	assert.EqualError(t, InvalidParameters(all[:1]), "Pod default/web: annotation a.prebind.dev/0 must be 0; correct the annotation")
	joined := InvalidParameters(all)
	assert.EqualError(t, joined, "Pod default/web: annotation a.prebind.dev/0 must be 0; annotation a.prebind.dev/1 must be 1; "+
		"annotation a.prebind.dev/2 must be 2; annotation a.prebind.dev/3 must be 3; annotation a.prebind.dev/4 must be 4; and 2 more; correct the annotation")
	assert.Len(t, joined.Fields, 5)
	assert.Equal(t, Field{Path: "metadata.annotations[a.prebind.dev/4]", Message: "must be 4"}, joined.Fields[4])
	assert.True(t, IsKind(joined, KindInvalid))
	assert.Len(t, all[0].Fields, 1, "the errors do not change")
}

func TestClip(t *testing.T) {
	cases := map[string]struct {
		reason, text, want string
		most               int
	}{
		"Short":    {reason: "short text does not change", text: "a ü 世", most: 10, want: "a ü 世"},
		"Long":     {reason: "an ellipsis marks the cut", text: "abcdefg", most: 6, want: "abc…"},
		"Unicode":  {reason: "the cut is between characters", text: "aüüü", most: 6, want: "aü…"},
		"Controls": {reason: "control characters are replaced", text: "a\nb\x1b[1m\u202ec", most: 50, want: "a b?[1m?c"},
		"NotUTF8":  {reason: "invalid UTF-8 is left out", text: "a\xffb", most: 50, want: "ab"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, Clip(tc.text, tc.most), tc.reason)
		})
	}
}

func TestIsSystemPod(t *testing.T) {
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
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, IsSystemPod(tc.pod), tc.reason) })
	}
}
