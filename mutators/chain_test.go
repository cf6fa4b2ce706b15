// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutators

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/gen"
)

// fake is a mutator of this name.
type fake struct {
	name   string
	mutate func(in Input) (Output, error)
}

func (f fake) Name() string { return f.name }

func (f fake) Mutate(in Input) (Output, error) { return f.mutate(in) }

// writes is a mutator that returns these keys and values, in pairs.
func writes(name string, pairs ...string) fake {
	annotations := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		annotations[pairs[i]] = pairs[i+1]
	}
	return fake{name: name, mutate: func(Input) (Output, error) { return Output{Annotations: annotations}, nil }}
}

func TestNewChain(t *testing.T) {
	cases := map[string]struct {
		reason string
		domain string
		names  []string
		// says is part of the error; empty for none.
		says string
	}{
		"None":          {reason: "an empty chain is fine", domain: "prebind.dev"},
		"Some":          {reason: "names in kebab-case", domain: "prebind.dev", names: []string{"topology", "rack-name", "a1"}},
		"Duplicate":     {reason: "two of a name would own the same keys", domain: "prebind.dev", names: []string{"a", "b", "a"}, says: `"a" is registered twice`},
		"EmptyName":     {reason: "a name is needed", domain: "prebind.dev", names: []string{""}, says: "DNS label"},
		"Dot":           {reason: "a.b could own what belongs to b", domain: "prebind.dev", names: []string{"a.b"}, says: "DNS label"},
		"UpperCase":     {reason: "no DNS label", domain: "prebind.dev", names: []string{"Topology"}, says: "DNS label"},
		"EmptyDomain":   {reason: "a domain is needed", names: []string{"a"}, says: "prefix"},
		"BadDomain":     {reason: "no domain", domain: "prebind dev", names: []string{"a"}, says: "prefix"},
		"Slash":         {reason: "no domain", domain: "prebind.dev/x", names: []string{"a"}, says: "prefix"},
		"LongDomain":    {reason: "253 characters at most, with the name", domain: strings.Repeat("a.", 125) + "aa", names: []string{"b"}, says: "prefix"},
		"LongestDomain": {reason: "253 characters are fine", domain: strings.Repeat("a.", 125) + "a", names: []string{"b"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var list []Mutator
			for _, n := range tc.names {
				list = append(list, writes(n))
			}
			c, err := NewChain(tc.domain, list...)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, len(tc.names), c.Len())
		})
	}
}

func TestMutate(t *testing.T) {
	errNo := errors.New("no")
	fails := func(name string) fake {
		return fake{name: name, mutate: func(Input) (Output, error) {
			return Output{Annotations: map[string]string{"half": "done"}}, errNo
		}}
	}
	panics := func(name string) fake {
		return fake{name: name, mutate: func(Input) (Output, error) { panic("boom") }}
	}
	cases := map[string]struct {
		reason   string
		pod      *corev1.Pod
		binding  []gen.BindingOption
		chain    []Mutator
		want     map[string]string
		replaced []Replaced
		failed   []string
	}{
		"None": {reason: "nothing to run", want: map[string]string{}},
		"OwnKeys": {
			reason: "each writes under its own name",
			chain:  []Mutator{writes("a", "k", "1", "l", ""), writes("b", "k", "2")},
			want:   map[string]string{"a.prebind.dev/k": "1", "a.prebind.dev/l": "", "b.prebind.dev/k": "2"},
		},
		"NoOutput": {
			reason: "a nil map is fine",
			chain:  []Mutator{fake{name: "a", mutate: func(Input) (Output, error) { return Output{}, nil }}},
			want:   map[string]string{},
		},
		"Contained": {
			reason: "one that fails or panics is left out as a whole; the others go on",
			chain:  []Mutator{fails("a"), writes("b", "k", "1"), panics("c"), writes("d", "k", "2")},
			want:   map[string]string{"b.prebind.dev/k": "1", "d.prebind.dev/k": "2"},
			failed: []string{"a", "c"},
		},
		"ForeignKey": {
			reason: "a key with a prefix is not its own, and spoils the rest of its output",
			chain:  []Mutator{writes("a", "b.prebind.dev/k", "1", "fine", "1"), writes("b", "k", "2")},
			want:   map[string]string{"b.prebind.dev/k": "2"},
			failed: []string{"a"},
		},
		"InvalidKeys": {
			reason: "what the API server could not update any more is not written",
			chain:  []Mutator{writes("a", "no good", "1"), writes("b", "", "1"), writes("c", strings.Repeat("k", 64), "1"), writes("d", strings.Repeat("k", 63), "1"), writes("e", "/", "1")},
			want:   map[string]string{"d.prebind.dev/" + strings.Repeat("k", 63): "1"},
			failed: []string{"a", "b", "c", "e"},
		},
		"ReplacedFromBinding": {
			reason:   "the scheduler had written another value",
			binding:  []gen.BindingOption{gen.Annotation("a.prebind.dev/k", "theirs")},
			chain:    []Mutator{writes("a", "k", "ours")},
			want:     map[string]string{"a.prebind.dev/k": "ours"},
			replaced: []Replaced{{Mutator: "a", Key: "a.prebind.dev/k", Source: "Binding"}},
		},
		"ReplacedFromPod": {
			reason:   "the pod's author had written another value",
			pod:      gen.Pod("web", gen.Annotation("a.prebind.dev/k", "theirs")),
			chain:    []Mutator{writes("a", "k", "")},
			want:     map[string]string{"a.prebind.dev/k": ""},
			replaced: []Replaced{{Mutator: "a", Key: "a.prebind.dev/k", Source: "pod"}},
		},
		"SameValue": {
			reason:  "an equal value is not replaced",
			pod:     gen.Pod("web", gen.Annotation("a.prebind.dev/k", "same")),
			binding: []gen.BindingOption{gen.Annotation("a.prebind.dev/l", "same")},
			chain:   []Mutator{writes("a", "k", "same", "l", "same")},
			want:    map[string]string{"a.prebind.dev/k": "same", "a.prebind.dev/l": "same"},
		},
		"BindingBeforePod": {
			reason:  "the Binding's value would have replaced the pod's, so it is the one that counts",
			pod:     gen.Pod("web", gen.Annotation("a.prebind.dev/k", "pods")),
			binding: []gen.BindingOption{gen.Annotation("a.prebind.dev/k", "ours")},
			chain:   []Mutator{writes("a", "k", "ours")},
			want:    map[string]string{"a.prebind.dev/k": "ours"},
		},
		"ReplacedInOrder": {
			reason:  "by mutator, then by key",
			binding: []gen.BindingOption{gen.Annotation("a.prebind.dev/k", "x"), gen.Annotation("b.prebind.dev/k", "x"), gen.Annotation("b.prebind.dev/a", "x")},
			chain:   []Mutator{writes("b", "k", "1", "a", "1"), writes("a", "k", "1")},
			want:    map[string]string{"a.prebind.dev/k": "1", "b.prebind.dev/k": "1", "b.prebind.dev/a": "1"},
			replaced: []Replaced{
				{Mutator: "b", Key: "b.prebind.dev/a", Source: "Binding"},
				{Mutator: "b", Key: "b.prebind.dev/k", Source: "Binding"},
				{Mutator: "a", Key: "a.prebind.dev/k", Source: "Binding"},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := tc.pod
			if pod == nil {
				pod = gen.Pod("web")
			}
			in := Input{Pod: pod, Node: gen.Node("node-a"), Binding: gen.Binding(pod, "node-a", tc.binding...)}
			before := Input{Pod: in.Pod.DeepCopy(), Node: in.Node.DeepCopy(), Binding: in.Binding.DeepCopy()}
			c, err := NewChain("prebind.dev", tc.chain...)
			require.NoError(t, err)

			got := c.Mutate(in)

			assert.Equal(t, tc.want, got.Annotations, tc.reason)
			assert.Equal(t, tc.replaced, got.Replaced, tc.reason)
			var failed []string
			for _, f := range got.Failures {
				failed = append(failed, f.Mutator)
				require.Error(t, f.Err)
			}
			assert.Equal(t, tc.failed, failed, tc.reason)
			assert.Equal(t, before, in, "the input is shared and does not change")
		})
	}
}

func TestMutateRunsInOrder(t *testing.T) {
	var order []string
	note := func(name string) Mutator {
		return fake{name: name, mutate: func(in Input) (Output, error) {
			order = append(order, name)
			assert.Empty(t, in.Binding.Annotations, "no mutator sees what another adds")
			return Output{Annotations: map[string]string{"k": "v"}}, nil
		}}
	}
	c, err := NewChain("example.com", note("c"), note("a"), note("b"))
	require.NoError(t, err)
	pod := gen.Pod("web")
	got := c.Mutate(Input{Pod: pod, Node: gen.Node("n"), Binding: gen.Binding(pod, "n")})
	assert.Equal(t, []string{"c", "a", "b"}, order)
	assert.Contains(t, got.Annotations, "a.example.com/k", "the domain is the operator's")
	got.Annotations["x"] = "y"
	assert.NotContains(t, c.Mutate(Input{Pod: pod, Node: gen.Node("n"), Binding: gen.Binding(pod, "n")}).Annotations, "x", "the caller owns the map")
}

func TestFailureKeepsItsError(t *testing.T) {
	errNo := errors.New("no")
	c, err := NewChain("prebind.dev", fake{name: "a", mutate: func(Input) (Output, error) { return Output{}, errNo }})
	require.NoError(t, err)
	pod := gen.Pod("web")
	got := c.Mutate(Input{Pod: pod, Node: gen.Node("n"), Binding: gen.Binding(pod, "n")})
	require.Len(t, got.Failures, 1)
	assert.ErrorIs(t, got.Failures[0].Err, errNo)
}
