// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

// agents are the pods of an agent by node.
var agents = Selection{
	Name: "test/agents", Example: &corev1.Pod{}, Namespace: "kube-system",
	Labels: labels.SelectorFromSet(labels.Set{"app": "agent"}), Fields: fields.OneTermEqualSelector("status.phase", "Running"),
	Value: func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName }, //nolint:forcetypeassert,errcheck // It has the type of the example.
}

func TestSelection_Check(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(s *Selection)
		fails  bool
	}{
		"Complete": {reason: "all required fields are set", change: func(*Selection) {}},
		"All":      {reason: "selectors are optional", change: func(s *Selection) { s.Labels, s.Fields, s.Namespace = nil, nil, "" }},
		"Name":     {reason: "the name identifies the cache", change: func(s *Selection) { s.Name = "" }, fails: true},
		"Example":  {reason: "the kind is unknown", change: func(s *Selection) { s.Example = nil }, fails: true},
		"Together": {reason: "there is only one value", change: func(s *Selection) { s.Value = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := agents
			tc.change(&s)
			err := s.Check()
			assert.Equal(t, tc.fails, err != nil, tc.reason)
			if tc.fails {
				assert.ErrorContains(t, err, "required")
			}
		})
	}
}

func TestSelection_ValueOf(t *testing.T) {
	pod, together := gen.Pod("a", gen.BoundTo("node-a")), agents
	together.Value = nil
	assert.Equal(t, "node-a", agents.ValueOf(pod))
	assert.Empty(t, together.ValueOf(pod))
}

func TestTransform(t *testing.T) {
	transform := Transform(func(pod *corev1.Pod) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}} })
	got, err := transform(gen.Pod("a", gen.BoundTo("node-a")))
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, got)
	other := gen.Node("a")
	got, err = transform(other)
	require.NoError(t, err)
	assert.Same(t, other, got, "an object of another type does not change")
}
