// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

func TestNew(t *testing.T) {
	cases := map[string]struct {
		reason string
		labels []string
		want   []labelCopy
		// says is part of the error; empty for none.
		says string
	}{
		"None":     {reason: "nothing is copied"},
		"Default":  {reason: "the part behind the slash", labels: DefaultLabels(), want: []labelCopy{{"topology.kubernetes.io/zone", "zone"}, {"topology.kubernetes.io/region", "region"}, {"kubernetes.io/hostname", "hostname"}}},
		"NoPrefix": {reason: "a label without a slash is its own key", labels: []string{"rack"}, want: []labelCopy{{"rack", "rack"}}},
		"Named":    {reason: "another key", labels: []string{"example.com/rack=row"}, want: []labelCopy{{"example.com/rack", "row"}}},
		"SameLabelTwice": {
			reason: "one label under two keys is fine", labels: []string{"example.com/rack", "example.com/rack=row"},
			want: []labelCopy{{"example.com/rack", "rack"}, {"example.com/rack", "row"}},
		},
		"Duplicate":   {reason: "two labels cannot become one key", labels: []string{"a.example/rack", "b.example/rack"}, says: "other-key"},
		"Repeated":    {reason: "nor can one label twice", labels: []string{"rack", "rack"}, says: `"rack"`},
		"Empty":       {reason: "no label", labels: []string{""}, says: "no label key"},
		"NoLabel":     {reason: "no label", labels: []string{"=key"}, says: "no label key"},
		"EmptyKey":    {reason: "an equals sign asks for a key", labels: []string{"rack="}, says: "annotation key"},
		"TwoEquals":   {reason: "the rest is the key, and no valid one", labels: []string{"rack=a=b"}, says: "a=b"},
		"KeyPrefix":   {reason: "the prefix is the chain's", labels: []string{"rack=example.com/rack"}, says: "without prefix"},
		"BadLabel":    {reason: "no node can have it", labels: []string{"no good"}, says: "no label key"},
		"Space":       {reason: "a space behind the comma is no part of a label", labels: []string{" rack"}, says: "no label key"},
		"LongKey":     {reason: "63 characters at most", labels: []string{"rack=" + strings.Repeat("a", 64)}, says: "63"},
		"BadAmongFew": {reason: "one is enough", labels: []string{"rack", "a/b/c"}, says: "a/b/c"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			m, err := New(Options{Labels: tc.labels})
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				assert.NotContains(t, err.Error(), "\n")
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, m.copies, tc.reason)
			assert.Equal(t, "topology", m.Name())
		})
	}
}

func TestMutate(t *testing.T) {
	cases := map[string]struct {
		reason string
		node   []gen.NodeOption
		want   map[string]string
	}{
		"All":     {reason: "what the node has", node: []gen.NodeOption{gen.Zone("z1"), gen.Region("r1"), gen.Label("example.com/rack", "7")}, want: map[string]string{"zone": "z1", "region": "r1", "hostname": "node-a", "row": "7"}},
		"Missing": {reason: "a label that it lacks gives no annotation", want: map[string]string{"hostname": "node-a"}},
		"Empty":   {reason: "an empty label gives an empty annotation", node: []gen.NodeOption{gen.Zone("")}, want: map[string]string{"hostname": "node-a", "zone": ""}},
	}
	m, err := New(Options{Labels: append(DefaultLabels(), "example.com/rack=row")})
	require.NoError(t, err)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := gen.Pod("web")
			out, err := m.Mutate(mutators.Input{Pod: pod, Node: gen.Node("node-a", tc.node...), Binding: gen.Binding(pod, "node-a")})
			require.NoError(t, err)
			assert.Equal(t, tc.want, out.Annotations, tc.reason)
		})
	}
	bare := gen.Node("node-a")
	bare.Labels = nil
	out, err := m.Mutate(mutators.Input{Node: bare})
	require.NoError(t, err)
	assert.Empty(t, out.Annotations, "a node without labels")
}
