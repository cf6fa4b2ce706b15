// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

// agents are the pods of an agent by node.
var agents = Selection{
	Name: "test/agents", Example: &corev1.Pod{}, Namespace: "kube-system",
	Labels: labels.SelectorFromSet(labels.Set{"app": "agent"}), Fields: fields.OneTermEqualSelector("status.phase", "Running"),
	Field: "spec.nodeName", Value: func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName }, //nolint:forcetypeassert,errcheck // It has the type of the example.
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
		"Value":    {reason: "the cache needs the value", change: func(s *Selection) { s.Value = nil }, fails: true},
		"ByName":   {reason: "the value is the name", change: func(s *Selection) { s.Field, s.Value = ByName, nil }},
		"Together": {reason: "there is only one value", change: func(s *Selection) { s.Field, s.Value = "", nil }},
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

// The live reader sends the selectors of the selection to the API server.
func TestSelection_Where(t *testing.T) {
	o := (&client.ListOptions{}).ApplyOptions([]client.ListOption{agents.Where("node-a")})
	assert.Equal(t, "kube-system", o.Namespace)
	assert.Equal(t, "app=agent", o.LabelSelector.String())
	assert.Equal(t, "status.phase=Running,spec.nodeName=node-a", o.FieldSelector.String())

	all := agents
	all.Labels, all.Fields, all.Namespace = nil, nil, ""
	o = (&client.ListOptions{}).ApplyOptions([]client.ListOption{all.Where("")})
	assert.Empty(t, o.Namespace)
	assert.Nil(t, o.LabelSelector)
	assert.Equal(t, "spec.nodeName=", o.FieldSelector.String())
}

// The live reader selects by name if the API server can, and otherwise reads all objects.
func TestSelection_WhereOther(t *testing.T) {
	for name, tc := range map[string]struct {
		reason           string
		change           func(s *Selection)
		value            string
		namespace, field string
		impossible       bool
	}{
		"ByName":        {reason: "the value has the namespace", change: func(s *Selection) { s.Field = ByName }, value: "kube-system/a", namespace: "kube-system", field: "status.phase=Running,metadata.name=a"},
		"AnyNamespace":  {reason: "the selection has all namespaces", change: func(s *Selection) { s.Field, s.Namespace, s.Fields = ByName, "", nil }, value: "shop/a", namespace: "shop", field: "metadata.name=a"},
		"ClusterScoped": {reason: "the object has no namespace", change: func(s *Selection) { s.Field, s.Namespace, s.Fields = ByName, "", nil }, value: "a", field: "metadata.name=a"},
		"Elsewhere":     {reason: "the selection has another namespace only", change: func(s *Selection) { s.Field, s.Fields = ByName, nil }, value: "shop/a", namespace: "kube-system", field: "metadata.name=a", impossible: true},
		"InvalidName":   {reason: "no object has the name", change: func(s *Selection) { s.Field, s.Namespace, s.Fields = ByName, "", nil }, value: "a/b/c", field: "metadata.name=", impossible: true},
		"InvalidPath":   {reason: "the name is not valid in a URL", change: func(s *Selection) { s.Field, s.Namespace, s.Fields = ByName, "", nil }, value: "../a", namespace: "..", field: "metadata.name=a", impossible: true},
		"Together":      {reason: "all objects have the empty value", change: func(s *Selection) { s.Field, s.Value = "", nil }, namespace: "kube-system", field: "status.phase=Running"},
		"TogetherOther": {reason: "no object has another value", change: func(s *Selection) { s.Field, s.Value = "", nil }, value: "x", namespace: "kube-system", field: "status.phase=Running", impossible: true},
		"Unsupported":   {reason: "the API server rejects the field", change: func(s *Selection) { s.Unsupported = true }, value: "node-a", namespace: "kube-system", field: "status.phase=Running"},
	} {
		t.Run(name, func(t *testing.T) {
			s := agents
			tc.change(&s)
			option := s.Where(tc.value)
			o := (&client.ListOptions{}).ApplyOptions([]client.ListOption{option})
			assert.Equal(t, tc.namespace, o.Namespace, tc.reason)
			assert.Equal(t, tc.field, o.FieldSelector.String(), tc.reason)
			assert.Equal(t, "app=agent", o.LabelSelector.String())
			selected, ok := SelectedBy([]client.ListOption{option})
			require.True(t, ok)
			assert.Equal(t, !tc.impossible, selected.Possible(), tc.reason)
		})
	}
	all := agents
	all.Field, all.Fields = "", nil
	assert.Nil(t, (&client.ListOptions{}).ApplyOptions([]client.ListOption{all.Where("")}).FieldSelector)
}

func TestSelection_ValueOf(t *testing.T) {
	pod, byName, together := gen.Pod("a", gen.InNamespace("shop"), gen.BoundTo("node-a")), agents, agents
	byName.Field, together.Field = ByName, ""
	assert.Equal(t, "node-a", agents.ValueOf(pod))
	assert.Equal(t, "shop/a", byName.ValueOf(pod))
	assert.Equal(t, "node-a", byName.ValueOf(gen.Node("node-a")))
	assert.Empty(t, together.ValueOf(pod))
}

func TestHub_Selection(t *testing.T) {
	h := NewHub()
	onA, onB := h.Subscribe(agents.Changed("node-a")), h.Subscribe(agents.Changed("node-b"))
	pods, other := h.Subscribe(AllOf(&corev1.Pod{}, "")), agents
	other.Name = "test/other"

	h.Changed(agents.Changed("node-a"))
	assert.True(t, woken(onA))
	assert.False(t, woken(onB), "the object is on another node")
	assert.False(t, woken(pods), "the cache of pods has not changed")
	h.Changed(other.Changed("node-a"))
	assert.False(t, woken(onA), "another selection has changed")
	h.Changed(RefTo(&corev1.Pod{}, "kube-system", "agent"))
	assert.False(t, woken(onA), "the cache of pods has changed, not the selection")
}
