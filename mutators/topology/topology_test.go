// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

func TestNew(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		options Arguments
		// says is part of the error. It is empty for no error.
		says string
	}{
		"DuplicateAside": {reason: "an entry with a star between two duplicates does not hide them", options: Arguments{Labels: []string{"a.example/rack", "c/*", "b.example/rack"}}, says: "other-key"},

		"StarInPrefix":  {reason: "'*' can follow a part of a prefix", options: Arguments{Labels: []string{"example.*", "a" + strings.Repeat(".example", 20) + "*"}}},
		"StarTwice":     {reason: "an entry cannot be listed twice", options: Arguments{Labels: []string{"a/*", "a/*"}}, says: `duplicate entry "a/*"`},
		"StarWithin":    {reason: "the star must be at the end", options: Arguments{Labels: []string{"example.com/*-net"}}, says: "such as example.com/*"},
		"StarBadPrefix": {reason: "a label cannot have this prefix", options: Arguments{Labels: []string{"Example.com/*"}}, says: `no label can begin with "Example.com/"`},
		"StarOneKey":    {reason: "all labels would have the same key", options: Arguments{Labels: []string{"a/net-*=net"}}, says: "such as a/net-*=key-*"},
		"StarKeySlash":  {reason: "a key must not have a prefix", options: Arguments{Labels: []string{"a/net-*=b/*"}}, says: "without a prefix"},
		"StarOnlyInKey": {reason: "a key with '*' requires a label with '*'", options: Arguments{Labels: []string{"a/net=n-*"}}, says: "n-*"},

		"PathTaken": {reason: "a label cannot have the key of the path", options: Arguments{Labels: []string{"example.com/path"}, Path: []string{"rack"}}, says: "example.com/path=other-key"},
		"PathTwice": {reason: "a label cannot be in the path twice", options: Arguments{Path: []string{"rack", "row", "rack"}}, says: `duplicate node label "rack"`},
		"PathStar":  {reason: "labels that match '*' have no order", options: Arguments{Path: []string{"rack-*"}}, says: "path: "},

		"PodLabelsPath":    {reason: "a label value cannot contain '/'", options: Arguments{Path: []string{"rack"}, PodLabels: []string{"path"}}, says: "its value contains"},
		"PodLabelsNoPath":  {reason: "without a path, the key path does not exist", options: Arguments{PodLabels: []string{"path"}}, says: `"path" is not the key`},
		"PodLabelsOwnPath": {reason: "without a path, a label can have the key path", options: Arguments{Labels: []string{"a/path"}, PodLabels: []string{"path"}}},
		"PodLabelsUnknown": {reason: "the key must be one of a copied label", options: Arguments{Labels: []string{"a/rack=row"}, PodLabels: []string{"rack"}}, says: `"rack" is not the key of a copied node label: use a key without prefix`},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := New(&tc.options)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				assert.NotContains(t, err.Error(), "\n")
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, "topology", m.Name())
		})
	}
}

// labelled returns a node with exactly these labels, given as alternating keys and values.
func labelled(kv ...string) *corev1.Node {
	node := gen.Node("node-a")
	node.Labels = pairs(kv...)
	return node
}

func pairs(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

func TestMutate(t *testing.T) {
	path := []string{"region", "zone", "rack"}
	for name, tc := range map[string]struct {
		reason       string
		options      Arguments
		node         *corev1.Node
		want, labels map[string]string
		missing      []string
	}{
		"StarInName": {
			reason: "the key is the part after the slash", options: Arguments{Labels: []string{"example.com/net-*", "net*"}},
			node: labelled("example.com/net-leaf", "l", "example.com/net", "x", "net", "n", "net.example.com/b", "b"), want: pairs("net-leaf", "l", "net", "n", "b", "b"),
		},
		"StarNamed": {
			reason: "'*' in the key is the rest of the label", options: Arguments{Labels: []string{"example.com/net-*=n-*.n", "example.com/net-*=*"}},
			node: labelled("example.com/net-leaf", "l", "example.com/net-1", "1"), want: pairs("n-leaf.n", "l", "n-1.n", "1", "leaf", "l", "1", "1"),
		},
		"StarNamedBadRest": {
			reason: "a label that results in an invalid key is skipped", options: Arguments{Labels: []string{"net*=*-net"}},
			node: labelled("net-leaf", "-leaf-net", "net", "-net", "net.example.com/x", "a slash", "neta"+strings.Repeat("a", 58), "63", "neta"+strings.Repeat("a", 59), "64", "net1", "1"),
			want: pairs("a"+strings.Repeat("a", 58)+"-net", "63", "1-net", "1"),
		},
		"PlainLabelWins": {
			reason: "an entry without '*' has priority for its label", options: Arguments{Labels: []string{"a/*", "*=x-*", "a/rack=row"}},
			node: labelled("a/rack", "7", "a/zone", "z", "b", "b"), want: pairs("row", "7", "zone", "z", "x-b", "b"),
		},
		"PlainKeyWinsUnseen": {
			reason: "the priority applies even if the node lacks the label, so that a key has one meaning", options: Arguments{Labels: []string{"a/*", "z/rack"}},
			node: labelled("a/rack", "a"), want: pairs(), missing: []string{"the node has no label z/rack"},
		},
		"StarsClash": {
			reason: "the first label in sorted order has priority", options: Arguments{Labels: []string{"*"}, PodLabels: []string{"rack"}},
			node: labelled("c/rack", "c", "b/rack", "b", "d/rack", "d", "rack2", "2", "e/rack2", "e"), want: pairs("rack", "b", "rack2", "e"), labels: pairs("rack", "b"),
		},

		"PathEmptyLabel": {
			reason: "an empty or missing label omits the path, because a part of it is another place", options: Arguments{Path: path},
			node: labelled("region", "r", "zone", ""), want: pairs(),
			missing: []string{"the node's label zone for the path is empty", "the node has no label rack for the path"},
		},
		"PathBesideStar": {
			reason: "no label gets the key of the path, even if the path is missing", options: Arguments{Path: path, Labels: []string{"*"}, PodLabels: []string{"*"}},
			node: labelled("a/path", "x", "region", "r"), want: pairs("region", "r"), labels: pairs("region", "r"),
			missing: []string{"the node has no label zone for the path", "the node has no label rack for the path"},
		},

		"PodLabels": {
			reason:  "only the configured keys become labels",
			options: Arguments{Labels: []string{"zone", "a/b=row", "c"}, PodLabels: []string{"row", "c"}, ReplacePodLabels: true},
			node:    labelled("zone", "z", "a/b", "7"), want: pairs("zone", "z", "row", "7"), labels: pairs("row", "7"), missing: []string{"the node has no label c"},
		},
		"PodLabelsAll": {
			reason: "'*' means every key except path", options: Arguments{Labels: []string{"zone", "a/*"}, Path: []string{"zone"}, PodLabels: []string{"*"}},
			node: labelled("zone", "z", "a/rack", ""), want: pairs("zone", "z", "rack", "", "path", "z"), labels: pairs("zone", "z", "rack", ""),
		},
		"PodLabelsByStar": {
			reason: "a configured key can be missing on a node", options: Arguments{Labels: []string{"net-*=n-*"}, PodLabels: []string{"n-leaf", "n-spine"}},
			node: labelled("net-leaf", "l", "net-rail", "r"), want: pairs("n-leaf", "l", "n-rail", "r"), labels: pairs("n-leaf", "l"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := New(&tc.options)
			require.NoError(t, err)
			in := mutators.Input{Node: tc.node}
			before := tc.node.DeepCopy()
			// The iteration order of a map varies.
			for range 10 {
				out, err := m.Mutate(in)
				require.NoError(t, err)
				want := mutators.Output{Annotations: tc.want, Labels: tc.labels, Missing: tc.missing, ReplaceLabels: tc.options.ReplacePodLabels}
				require.Equal(t, want, out, tc.reason)
			}
			assert.Equal(t, before, tc.node, "the mutator does not change the node")
		})
	}
}

func TestMutate_Allocations(t *testing.T) {
	m, err := New(&Arguments{Labels: append(DefaultLabels(), "net.example.com/*"), Path: DefaultLabels(), PodLabels: []string{"zone"}})
	require.NoError(t, err)
	node := gen.Node("node-a", gen.Zone("z1"), gen.Region("r1"))
	for i := range 500 {
		node.Labels[fmt.Sprintf("feature.example.com/%d", i)] = "true"
	}
	in := mutators.Input{Node: node}
	allocations := testing.AllocsPerRun(100, func() { _, err = m.Mutate(in) })
	require.NoError(t, err)
	assert.LessOrEqual(t, allocations, 6.0, "the allocations do not depend on the number of labels")
}
