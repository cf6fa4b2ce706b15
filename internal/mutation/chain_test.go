// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
)

var errNo = errors.New("no")

// fake is a mutator that calls a function.
type fake struct {
	name   string
	mutate func(in mutators.Input) (mutators.Output, error)
}

func (f fake) Name() string { return f.name }

func (f fake) Mutate(in mutators.Input) (mutators.Output, error) { return f.mutate(in) }

// returns returns a mutator that returns this output.
func returns(name string, out mutators.Output) fake {
	return fake{name: name, mutate: func(mutators.Input) (mutators.Output, error) { return out, nil }}
}

// pairs returns a map of alternating keys and values.
func pairs(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

// writes returns a mutator that returns these annotations.
func writes(name string, kv ...string) fake {
	return returns(name, mutators.Output{Annotations: pairs(kv...)})
}

// labels returns a mutator that returns these labels of the pod.
func labels(name string, kv ...string) fake {
	return returns(name, mutators.Output{Labels: pairs(kv...)})
}

// replaces is like labels, and the mutator replaces existing values.
func replaces(name string, kv ...string) fake {
	return returns(name, mutators.Output{Labels: pairs(kv...), ReplaceLabels: true})
}

// misses returns a mutator that reports missing values.
func misses(name string, missing ...string) fake {
	return returns(name, mutators.Output{Annotations: pairs("half", "done"), Missing: missing})
}

// fails returns a mutator that returns an error, and output that the chain must ignore.
func fails(name string) fake {
	return fake{name: name, mutate: func(mutators.Input) (mutators.Output, error) {
		return mutators.Output{Annotations: pairs("half", "done"), Labels: pairs("half", "done"), Missing: []string{"nothing"}}, errNo
	}}
}

// panics returns a mutator that panics.
func panics(name string) fake {
	return fake{name: name, mutate: func(mutators.Input) (mutators.Output, error) { panic("boom") }}
}

// input returns the input for a bind of the pod. If pod is nil, input creates one.
func input(pod *corev1.Pod, binding ...gen.BindingOption) mutators.Input {
	if pod == nil {
		pod = gen.Pod("web")
	}
	return mutators.Input{Pod: pod, Node: gen.Node("node-a"), Binding: gen.Binding(pod, "node-a", binding...)}
}

func TestChain_Mutate(t *testing.T) {
	long, both := strings.Repeat("k", 63), []string{"a", "b"}
	for name, tc := range map[string]struct {
		reason           string
		pod              *corev1.Pod
		binding          []gen.BindingOption
		chain            []mutators.Mutator
		want, wantLabels map[string]string
		conflicts        []Conflict
		failed           []string
		required         []string
		// refusing is the required mutator that rejects the bind, and says is part of its error.
		refusing, says string
	}{
		"OwnLabels": {
			reason:     "the name of the mutator is the prefix of its keys, and labels are not annotations",
			chain:      []mutators.Mutator{labels("a", "k", "1", "l", ""), returns("b", mutators.Output{Annotations: pairs("k", "2"), Labels: pairs("k", "3")})},
			want:       pairs("b.prebind.dev/k", "2"),
			wantLabels: pairs("a.prebind.dev/k", "1", "a.prebind.dev/l", "", "b.prebind.dev/k", "3"),
		},
		"Others": {
			reason:  "other keys do not change, even with the prefix of an unknown mutator",
			pod:     gen.Pod("web", gen.Annotation("b.prebind.dev/k", "x"), gen.Label("k", "x")),
			binding: []gen.BindingOption{gen.Annotation("a.example.com/k", "x"), gen.Label("a.prebind.dev/l", "x")},
			chain:   []mutators.Mutator{writes("a", "k", "1")},
			want:    pairs("a.prebind.dev/k", "1"),
		},

		"Contained": {
			reason: "the output of a mutator that fails or panics is discarded, and the others run",
			chain:  []mutators.Mutator{fails("a"), writes("b", "k", "1"), panics("c"), writes("d", "k", "2")},
			want:   pairs("b.prebind.dev/k", "1", "d.prebind.dev/k", "2"),
			failed: []string{"a", "c"},
		},
		"ForeignKey": {
			reason: "a key with a prefix discards the whole output of the mutator",
			chain: []mutators.Mutator{
				returns("a", mutators.Output{Annotations: pairs("b.prebind.dev/k", "1", "fine", "1"), Labels: pairs("fine", "1")}), writes("b", "k", "2"),
			},
			want:   pairs("b.prebind.dev/k", "2"),
			failed: []string{"a"},
		},
		"InvalidKeys": {
			reason: "an invalid annotation key discards the output",
			chain: []mutators.Mutator{
				writes("space", "no good", "1"), writes("empty", "", "1"), writes("slash", "/", "1"), writes("front", "/k", "1"), writes("behind", "k/", "1"),
				writes("unicode", "käse", "1"), writes("wide", "ｋ", "1"), writes("newline", "k\n", "1"), writes("dash", "k-", "1"), writes("dot", ".k", "1"),
				writes("nul", "k\x00", "1"), writes("utf8", "k\xff", "1"), writes("long", long+"k", "1"),
			},
			failed: []string{"space", "empty", "slash", "front", "behind", "unicode", "wide", "newline", "dash", "dot", "nul", "utf8", "long"},
		},
		"InvalidLabelValues": {
			reason: "an invalid label value discards the whole output of the mutator",
			chain: []mutators.Mutator{
				returns("long", mutators.Output{Annotations: pairs("fine", "1"), Labels: pairs("fine", "1", "k", long+"k")}),
				labels("slash", "k", "a/b"), labels("space", "k", " "), labels("unicode", "k", "ä"), labels("dash", "k", "-"), labels("newline", "k", "a\n"),
				labels("next", "k", "1"),
			},
			wantLabels: pairs("next.prebind.dev/k", "1"),
			failed:     []string{"long", "slash", "space", "unicode", "dash", "newline"},
		},

		"AnnotationOfPod": {
			reason:    "the pod has a different value",
			pod:       gen.Pod("web", gen.Annotation("a.prebind.dev/k", "theirs")),
			chain:     []mutators.Mutator{writes("a", "k", "")},
			want:      pairs("a.prebind.dev/k", ""),
			conflicts: []Conflict{{Mutator: "a", Field: "annotation", Key: "a.prebind.dev/k", Source: "pod"}},
		},
		"SameValue": {
			reason:     "an equal value is not a conflict",
			pod:        gen.Pod("web", gen.Annotation("a.prebind.dev/k", "same"), gen.Label("a.prebind.dev/k", "same")),
			binding:    []gen.BindingOption{gen.Annotation("a.prebind.dev/l", "same"), gen.Label("a.prebind.dev/l", "same")},
			chain:      []mutators.Mutator{returns("a", mutators.Output{Annotations: pairs("k", "same", "l", "same"), Labels: pairs("k", "same", "l", "same")})},
			want:       pairs("a.prebind.dev/k", "same", "a.prebind.dev/l", "same"),
			wantLabels: pairs("a.prebind.dev/k", "same", "a.prebind.dev/l", "same"),
		},
		"BindingBeforePod": {
			reason:     "only the value of the Binding is compared, because it replaces that of the pod",
			pod:        gen.Pod("web", gen.Annotation("a.prebind.dev/k", "pods"), gen.Label("a.prebind.dev/k", "pods")),
			binding:    []gen.BindingOption{gen.Annotation("a.prebind.dev/k", "ours"), gen.Label("a.prebind.dev/k", "ours")},
			chain:      []mutators.Mutator{returns("a", mutators.Output{Annotations: pairs("k", "ours"), Labels: pairs("k", "ours")})},
			want:       pairs("a.prebind.dev/k", "ours"),
			wantLabels: pairs("a.prebind.dev/k", "ours"),
		},
		"LabelOfBindingKept": {
			reason:    "a label of the Binding is kept, even if the pod has the value of the mutator",
			pod:       gen.Pod("web", gen.Label("a.prebind.dev/k", "ours")),
			binding:   []gen.BindingOption{gen.Label("a.prebind.dev/k", "theirs")},
			chain:     []mutators.Mutator{labels("a", "k", "ours")},
			conflicts: []Conflict{{Mutator: "a", Field: "label", Key: "a.prebind.dev/k", Source: "Binding", Kept: true}},
		},
		"EachForItself": {
			reason:     "a mutator with ReplaceLabels replaces labels, but no other mutator does",
			pod:        gen.Pod("web", gen.Label("a.prebind.dev/k", "theirs"), gen.Label("b.prebind.dev/k", "theirs")),
			binding:    []gen.BindingOption{gen.Label("a.prebind.dev/l", "theirs")},
			chain:      []mutators.Mutator{replaces("a", "k", "ours", "l", "ours", "m", "ours"), labels("b", "k", "ours", "l", "ours")},
			wantLabels: pairs("a.prebind.dev/k", "ours", "a.prebind.dev/l", "ours", "a.prebind.dev/m", "ours", "b.prebind.dev/l", "ours"),
			conflicts: []Conflict{
				{Mutator: "a", Field: "label", Key: "a.prebind.dev/k", Source: "pod"},
				{Mutator: "a", Field: "label", Key: "a.prebind.dev/l", Source: "Binding"},
				{Mutator: "b", Field: "label", Key: "b.prebind.dev/k", Source: "pod", Kept: true},
			},
		},
		"InOrder": {
			reason: "conflicts are sorted by mutator, then annotations before labels, then by key",
			binding: []gen.BindingOption{
				gen.Annotation("a.prebind.dev/k", "x"), gen.Annotation("b.prebind.dev/k", "x"), gen.Annotation("b.prebind.dev/a", "x"), gen.Label("b.prebind.dev/b", "x"),
				gen.Label("b.prebind.dev/a", "x"),
			},
			chain: []mutators.Mutator{returns("b", mutators.Output{Annotations: pairs("k", "1", "a", "1"), Labels: pairs("b", "1", "a", "1")}), writes("a", "k", "1")},
			want:  pairs("a.prebind.dev/k", "1", "b.prebind.dev/k", "1", "b.prebind.dev/a", "1"),
			conflicts: []Conflict{
				{Mutator: "b", Field: "annotation", Key: "b.prebind.dev/a", Source: "Binding"},
				{Mutator: "b", Field: "annotation", Key: "b.prebind.dev/k", Source: "Binding"},
				{Mutator: "b", Field: "label", Key: "b.prebind.dev/a", Source: "Binding", Kept: true},
				{Mutator: "b", Field: "label", Key: "b.prebind.dev/b", Source: "Binding", Kept: true},
				{Mutator: "a", Field: "annotation", Key: "a.prebind.dev/k", Source: "Binding"},
			},
		},

		"RequiredMisses": {reason: "missing values of a required mutator reject the bind", required: both, chain: []mutators.Mutator{misses("a", "the node has no label x", "the node has no label y")}, refusing: "a", says: "but the node has no label x, the node has no label y", want: pairs("a.prebind.dev/half", "done")},
		"OtherFails":     {reason: "other mutators that fail are skipped and reported", required: both, chain: []mutators.Mutator{fails("x"), writes("a", "k", "1"), panics("y")}, failed: []string{"x", "y"}, want: pairs("a.prebind.dev/k", "1")},
		"OtherMisses":    {reason: "missing values of other mutators are ignored", required: both, chain: []mutators.Mutator{misses("x", "all"), writes("a", "k", "1")}, want: pairs("x.prebind.dev/half", "done", "a.prebind.dev/k", "1")},
		"FirstCounts":    {reason: "the first failure in the order of the chain is reported", required: both, chain: []mutators.Mutator{misses("b", "one"), fails("a")}, refusing: "b", says: "one", failed: []string{"a"}, want: pairs("b.prebind.dev/half", "done")},
		"OthersGoOn": {
			reason: "the other mutators run, because a dry run shows their output", required: both, chain: []mutators.Mutator{fails("a"), writes("b", "k", "1")},
			refusing: "a", says: "failed: no", failed: []string{"a"}, want: pairs("b.prebind.dev/k", "1"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, before := input(tc.pod, tc.binding...), input(tc.pod, tc.binding...)
			before.Pod = before.Pod.DeepCopy()
			got := NewChain(tc.chain, tc.required).Mutate(in)

			assert.Equal(t, orEmpty(tc.want), got.Annotations, tc.reason)
			assert.Equal(t, orEmpty(tc.wantLabels), got.Labels, tc.reason)
			assert.Equal(t, tc.conflicts, got.Conflicts, tc.reason)
			for _, c := range got.Conflicts {
				done := map[bool]string{true: "kept", false: "replaced"}[c.Kept]
				assert.Equal(t, fmt.Sprintf("%s: %s the %s's value of %s %s", c.Mutator, done, c.Source, c.Field, c.Key), c.String())
			}
			var failed []string
			for _, f := range got.Failures {
				failed = append(failed, f.Mutator)
				assert.Error(t, f.Err)
			}
			assert.Equal(t, tc.failed, failed, tc.reason)
			assert.Equal(t, before, in, "the chain does not change its input")
			if tc.refusing == "" {
				assert.Nil(t, got.Refused, tc.reason)
				return
			}
			require.NotNil(t, got.Refused, tc.reason)
			assert.Equal(t, tc.refusing, got.Refused.Mutator)
			assert.Contains(t, got.Refused.Message, tc.says, tc.reason)
			assert.NotEmpty(t, got.Refused.Advice, "every refusal has a remedy")
		})
	}
}

// orEmpty returns m, or an empty map if m is nil, because a Result has no nil maps.
func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func TestChain_Order(t *testing.T) {
	var order []string
	note := func(name string) mutators.Mutator {
		return fake{name: name, mutate: func(in mutators.Input) (mutators.Output, error) {
			order = append(order, name)
			assert.Empty(t, in.Binding.Annotations, "a mutator does not see the output of others")
			return mutators.Output{Annotations: map[string]string{"k": "v"}}, nil
		}}
	}
	c := NewChain([]mutators.Mutator{note("c"), note("a"), note("b")}, nil)
	got := c.Mutate(input(nil))
	assert.Equal(t, []string{"c", "a", "b"}, order)
	assert.Contains(t, got.Annotations, "a.prebind.dev/k")
	got.Annotations["x"], got.Labels["x"] = "y", "y"
	again := c.Mutate(input(nil))
	assert.NotContains(t, again.Annotations, "x", "the caller owns the map")
	assert.NotContains(t, again.Labels, "x", "the caller owns the map")
}

func TestChain_KeepsOutput(t *testing.T) {
	out := mutators.Output{Annotations: pairs("k", "1"), Labels: pairs("k", "1")}
	NewChain([]mutators.Mutator{returns("a", out)}, nil).Mutate(input(nil))
	assert.Equal(t, mutators.Output{Annotations: pairs("k", "1"), Labels: pairs("k", "1")}, out, "the chain does not change the maps of the mutator")
}

// TestChain_Changing checks that a value from an earlier call on the Binding is not a conflict, and that
// a value on the pod is one.
func TestChain_Changing(t *testing.T) {
	m := fake{name: "a", mutate: func(mutators.Input) (mutators.Output, error) {
		return mutators.Output{Annotations: map[string]string{"time": "2", "user": "u"}, Changing: []string{"time"}}, nil
	}}
	run := func(pod *corev1.Pod, options ...gen.BindingOption) []Conflict {
		return NewChain([]mutators.Mutator{m}, nil).Mutate(input(pod, options...)).Conflicts
	}
	assert.Empty(t, run(nil, gen.Annotation("a.prebind.dev/time", "1")))
	assert.Len(t, run(nil, gen.Annotation("a.prebind.dev/time", "1"), gen.Annotation("a.prebind.dev/user", "x")), 1)
	assert.Len(t, run(gen.Pod("web", gen.Annotation("a.prebind.dev/time", "1"))), 1)
}

func TestChain_Failures(t *testing.T) {
	got := NewChain([]mutators.Mutator{fails("a"), panics("b")}, []string{"a"}).Mutate(input(nil))
	require.Len(t, got.Failures, 2)
	require.ErrorIs(t, got.Refused, errNo)
	assert.ErrorIs(t, got.Failures[0].Err, errNo)
	assert.Empty(t, got.Failures[0].Stack)
	assert.ErrorContains(t, got.Failures[1].Err, "boom")
	assert.Contains(t, got.Failures[1].Stack, "chain_test.go", "the stack shows the source of the panic")
}

// The first invalid key or value is reported, so that the same bind has the same message.
func TestChain_DeterministicFailures(t *testing.T) {
	for says, out := range map[string]mutators.Output{
		`"b d"`:         {Annotations: pairs("a", "", "b/c", "", "b d", "", "z z", "")},
		`the label "b"`: {Labels: pairs("a", "", "b", "/", "c", "/", "d", "/")},
	} {
		c := NewChain([]mutators.Mutator{returns("a", out)}, nil)
		for range 20 {
			got := c.Mutate(input(nil))
			require.Len(t, got.Failures, 1)
			require.ErrorContains(t, got.Failures[0].Err, says)
		}
	}
}
