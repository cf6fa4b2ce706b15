// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutators

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/test/gen"
)

var errNo = errors.New("no")

// fake is a mutator of this name.
type fake struct {
	name   string
	mutate func(in Input) (Output, error)
}

func (f fake) Name() string { return f.name }

func (f fake) Mutate(in Input) (Output, error) { return f.mutate(in) }

// returns is a mutator that returns this output.
func returns(name string, out Output) fake {
	return fake{name: name, mutate: func(Input) (Output, error) { return out, nil }}
}

// pairs makes a map of keys and values that alternate.
func pairs(kv ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

// writes is a mutator that returns these annotations.
func writes(name string, kv ...string) fake { return returns(name, Output{Annotations: pairs(kv...)}) }

// labels is a mutator that returns these labels of the pod.
func labels(name string, kv ...string) fake { return returns(name, Output{Labels: pairs(kv...)}) }

// replaces is like labels, and replaces others' values.
func replaces(name string, kv ...string) fake {
	return returns(name, Output{Labels: pairs(kv...), ReplaceLabels: true})
}

// misses is a mutator that could not write all.
func misses(name string, missing ...string) fake {
	return returns(name, Output{Annotations: pairs("half", "done"), Missing: missing})
}

// fails is a mutator that returns an error, and an output that nobody may use.
func fails(name string) fake {
	return fake{name: name, mutate: func(Input) (Output, error) {
		return Output{Annotations: pairs("half", "done"), Labels: pairs("half", "done"), Missing: []string{"nothing"}}, errNo
	}}
}

// panics is a mutator with a mistake.
func panics(name string) fake {
	return fake{name: name, mutate: func(Input) (Output, error) { panic("boom") }}
}

// input is that of a bind of the pod, or of any if it is nil.
func input(pod *corev1.Pod, binding ...gen.BindingOption) Input {
	if pod == nil {
		pod = gen.Pod("web")
	}
	return Input{Pod: pod, Node: gen.Node("node-a"), Binding: gen.Binding(pod, "node-a", binding...)}
}

func newChain(t testing.TB, list ...Mutator) *Chain {
	t.Helper()
	c, err := NewChain(Options{Mutators: list})
	require.NoError(t, err)
	return c
}

func TestNewChain(t *testing.T) {
	cases := map[string]struct {
		reason   string
		names    []string
		required []string
		// says is part of the error; empty for none.
		says string
	}{
		"None":             {reason: "an empty chain is fine"},
		"Some":             {reason: "names in kebab-case", names: []string{"topology", "rack-name", "a1"}},
		"Duplicate":        {reason: "two of a name would own the same keys", names: []string{"a", "b", "a"}, says: `"a" is registered twice`},
		"Binder":           {reason: "binder.prebind.dev is the engine's", names: []string{"a", "binder"}, says: "reserved"},
		"EmptyName":        {reason: "a name is needed", names: []string{""}, says: "DNS label"},
		"Dot":              {reason: "a.b could own what belongs to b", names: []string{"a.b"}, says: "DNS label"},
		"UpperCase":        {reason: "no DNS label", names: []string{"Topology"}, says: "DNS label"},
		"LongestName":      {reason: "63 characters are fine", names: []string{strings.Repeat("a", 63)}},
		"LongName":         {reason: "64 are not", names: []string{strings.Repeat("a", 64)}, says: "DNS label"},
		"Required":         {reason: "any of them may be required", names: []string{"a", "b"}, required: []string{"b", "a"}},
		"RequiredTwice":    {reason: "it is no more required than once", names: []string{"a"}, required: []string{"a", "a"}},
		"RequiredUnknown":  {reason: "no pod would be bound as the operator wants it", names: []string{"a"}, required: []string{"a", "b"}, says: `"b" is required but not switched on`},
		"RequiredEmpty":    {reason: "the empty name is no mutator's", names: []string{"a"}, required: []string{""}, says: "not switched on"},
		"RequiredFromNone": {reason: "an empty chain has none", required: []string{"a"}, says: `"a"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var list []Mutator
			for _, n := range tc.names {
				list = append(list, writes(n))
			}
			c, err := NewChain(Options{Mutators: list, Required: tc.required})
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, len(tc.names), c.Len())
			assert.Equal(t, append([]string{}, tc.names...), c.Names())
		})
	}
}

func TestMutate(t *testing.T) {
	long := strings.Repeat("k", 63)
	cases := map[string]struct {
		reason     string
		pod        *corev1.Pod
		binding    []gen.BindingOption
		chain      []Mutator
		want       map[string]string
		wantLabels map[string]string
		conflicts  []Conflict
		failed     []string
	}{
		"None": {reason: "nothing to run"},
		"OwnKeys": {
			reason: "each writes under its own name",
			chain:  []Mutator{writes("a", "k", "1", "l", ""), writes("b", "k", "2")},
			want:   pairs("a.prebind.dev/k", "1", "a.prebind.dev/l", "", "b.prebind.dev/k", "2"),
		},
		"OwnLabels": {
			reason:     "labels have the same keys, and are no annotations",
			chain:      []Mutator{labels("a", "k", "1", "l", ""), returns("b", Output{Annotations: pairs("k", "2"), Labels: pairs("k", "3")})},
			want:       pairs("b.prebind.dev/k", "2"),
			wantLabels: pairs("a.prebind.dev/k", "1", "a.prebind.dev/l", "", "b.prebind.dev/k", "3"),
		},
		"NoOutput": {
			reason: "nil maps are fine",
			chain:  []Mutator{returns("a", Output{})},
		},
		"Others": {
			reason:  "keys of others are not touched, also of a mutator that is not there",
			pod:     gen.Pod("web", gen.Annotation("b.prebind.dev/k", "x"), gen.Label("k", "x")),
			binding: []gen.BindingOption{gen.Annotation("a.example.com/k", "x"), gen.Label("a.prebind.dev/l", "x")},
			chain:   []Mutator{writes("a", "k", "1")},
			want:    pairs("a.prebind.dev/k", "1"),
		},

		"Contained": {
			reason: "one that fails or panics is left out as a whole; the others go on",
			chain:  []Mutator{fails("a"), writes("b", "k", "1"), panics("c"), writes("d", "k", "2")},
			want:   pairs("b.prebind.dev/k", "1", "d.prebind.dev/k", "2"),
			failed: []string{"a", "c"},
		},
		"Missing": {
			reason: "what could not be added is no failure where the mutator is not required",
			chain:  []Mutator{misses("a", "the node has no label rack")},
			want:   pairs("a.prebind.dev/half", "done"),
		},
		"ForeignKey": {
			reason: "a key with a prefix is not its own, and spoils the rest of its output",
			chain: []Mutator{
				returns("a", Output{Annotations: pairs("b.prebind.dev/k", "1", "fine", "1"), Labels: pairs("fine", "1")}), writes("b", "k", "2"),
			},
			want:   pairs("b.prebind.dev/k", "2"),
			failed: []string{"a"},
		},
		"ForeignLabel": {
			reason: "nor may a label be another's",
			chain:  []Mutator{returns("a", Output{Annotations: pairs("fine", "1"), Labels: pairs("app.kubernetes.io/name", "1")})},
			failed: []string{"a"},
		},
		"InvalidKeys": {
			reason: "what the API server could not update any more is not written",
			chain: []Mutator{
				writes("space", "no good", "1"), writes("empty", "", "1"), writes("slash", "/", "1"), writes("front", "/k", "1"), writes("behind", "k/", "1"),
				writes("unicode", "käse", "1"), writes("wide", "ｋ", "1"), writes("newline", "k\n", "1"), writes("dash", "k-", "1"), writes("dot", ".k", "1"),
				writes("nul", "k\x00", "1"), writes("utf8", "k\xff", "1"), writes("long", long+"k", "1"),
			},
			failed: []string{"space", "empty", "slash", "front", "behind", "unicode", "wide", "newline", "dash", "dot", "nul", "utf8", "long"},
		},
		"ValidKeys": {
			reason: "63 characters; letters of both cases, digits, '-', '_' and '.' within",
			chain:  []Mutator{writes("a", long, "1", "K", "1", "0", "1", "a.b-c_D", "1")},
			want:   pairs("a.prebind.dev/"+long, "1", "a.prebind.dev/K", "1", "a.prebind.dev/0", "1", "a.prebind.dev/a.b-c_D", "1"),
		},
		"InvalidLabelKeys": {
			reason: "labels have the same keys",
			chain:  []Mutator{labels("space", "no good", "1"), labels("empty", "", "1"), labels("long", long+"k", "1"), labels("unicode", "ключ", "1")},
			failed: []string{"space", "empty", "long", "unicode"},
		},
		"AnyAnnotationValue": {
			reason: "an annotation's value is any string",
			chain:  []Mutator{writes("a", "k", "a/b c\nd ä "+strings.Repeat("x", 300))},
			want:   pairs("a.prebind.dev/k", "a/b c\nd ä "+strings.Repeat("x", 300)),
		},
		"LabelValues": {
			reason:     "63 characters, or none",
			chain:      []Mutator{labels("a", "k", long, "l", "", "m", "A.b_c-1")},
			wantLabels: pairs("a.prebind.dev/k", long, "a.prebind.dev/l", "", "a.prebind.dev/m", "A.b_c-1"),
		},
		"InvalidLabelValues": {
			reason: "a value that is no label value spoils the mutator's whole output",
			chain: []Mutator{
				returns("long", Output{Annotations: pairs("fine", "1"), Labels: pairs("fine", "1", "k", long+"k")}),
				labels("slash", "k", "a/b"), labels("space", "k", " "), labels("unicode", "k", "ä"), labels("dash", "k", "-"), labels("newline", "k", "a\n"),
				labels("next", "k", "1"),
			},
			wantLabels: pairs("next.prebind.dev/k", "1"),
			failed:     []string{"long", "slash", "space", "unicode", "dash", "newline"},
		},
		"KeptNoConflict": {
			reason:  "of what is left out nothing is reported",
			binding: []gen.BindingOption{gen.Annotation("a.prebind.dev/half", "theirs"), gen.Label("a.prebind.dev/half", "theirs")},
			chain:   []Mutator{fails("a")},
			failed:  []string{"a"},
		},

		"AnnotationOfBinding": {
			reason:    "the scheduler had written another value",
			binding:   []gen.BindingOption{gen.Annotation("a.prebind.dev/k", "theirs")},
			chain:     []Mutator{writes("a", "k", "ours")},
			want:      pairs("a.prebind.dev/k", "ours"),
			conflicts: []Conflict{{Mutator: "a", Field: "annotation", Key: "a.prebind.dev/k", Source: "Binding"}},
		},
		"AnnotationOfPod": {
			reason:    "the pod's author had written another value",
			pod:       gen.Pod("web", gen.Annotation("a.prebind.dev/k", "theirs")),
			chain:     []Mutator{writes("a", "k", "")},
			want:      pairs("a.prebind.dev/k", ""),
			conflicts: []Conflict{{Mutator: "a", Field: "annotation", Key: "a.prebind.dev/k", Source: "pod"}},
		},
		"AnnotationOfBoth": {
			reason:    "it is told of once: the Binding's counts",
			pod:       gen.Pod("web", gen.Annotation("a.prebind.dev/k", "pods")),
			binding:   []gen.BindingOption{gen.Annotation("a.prebind.dev/k", "bindings")},
			chain:     []Mutator{writes("a", "k", "ours")},
			want:      pairs("a.prebind.dev/k", "ours"),
			conflicts: []Conflict{{Mutator: "a", Field: "annotation", Key: "a.prebind.dev/k", Source: "Binding"}},
		},
		"EmptyIsAValue": {
			reason:    "an empty value is one that differs",
			binding:   []gen.BindingOption{gen.Annotation("a.prebind.dev/k", "")},
			chain:     []Mutator{writes("a", "k", "ours")},
			want:      pairs("a.prebind.dev/k", "ours"),
			conflicts: []Conflict{{Mutator: "a", Field: "annotation", Key: "a.prebind.dev/k", Source: "Binding"}},
		},
		"SameValue": {
			reason:     "an equal value is no conflict",
			pod:        gen.Pod("web", gen.Annotation("a.prebind.dev/k", "same"), gen.Label("a.prebind.dev/k", "same")),
			binding:    []gen.BindingOption{gen.Annotation("a.prebind.dev/l", "same"), gen.Label("a.prebind.dev/l", "same")},
			chain:      []Mutator{returns("a", Output{Annotations: pairs("k", "same", "l", "same"), Labels: pairs("k", "same", "l", "same")})},
			want:       pairs("a.prebind.dev/k", "same", "a.prebind.dev/l", "same"),
			wantLabels: pairs("a.prebind.dev/k", "same", "a.prebind.dev/l", "same"),
		},
		"BindingBeforePod": {
			reason:     "the Binding's value would have replaced the pod's, so it is the one that counts",
			pod:        gen.Pod("web", gen.Annotation("a.prebind.dev/k", "pods"), gen.Label("a.prebind.dev/k", "pods")),
			binding:    []gen.BindingOption{gen.Annotation("a.prebind.dev/k", "ours"), gen.Label("a.prebind.dev/k", "ours")},
			chain:      []Mutator{returns("a", Output{Annotations: pairs("k", "ours"), Labels: pairs("k", "ours")})},
			want:       pairs("a.prebind.dev/k", "ours"),
			wantLabels: pairs("a.prebind.dev/k", "ours"),
		},
		"LabelOfPodKept": {
			reason:     "a label of the pod's author is his",
			pod:        gen.Pod("web", gen.Label("a.prebind.dev/k", "theirs")),
			chain:      []Mutator{labels("a", "k", "ours", "l", "ours")},
			wantLabels: pairs("a.prebind.dev/l", "ours"),
			conflicts:  []Conflict{{Mutator: "a", Field: "label", Key: "a.prebind.dev/k", Source: "pod", Kept: true}},
		},
		"LabelOfBindingKept": {
			reason:    "and so is the scheduler's, also over the pod's that is equal to ours",
			pod:       gen.Pod("web", gen.Label("a.prebind.dev/k", "ours")),
			binding:   []gen.BindingOption{gen.Label("a.prebind.dev/k", "theirs")},
			chain:     []Mutator{labels("a", "k", "ours")},
			conflicts: []Conflict{{Mutator: "a", Field: "label", Key: "a.prebind.dev/k", Source: "Binding", Kept: true}},
		},
		"EmptyLabelKept": {
			reason:    "an empty value is a value",
			pod:       gen.Pod("web", gen.Label("a.prebind.dev/k", "")),
			chain:     []Mutator{labels("a", "k", "ours")},
			conflicts: []Conflict{{Mutator: "a", Field: "label", Key: "a.prebind.dev/k", Source: "pod", Kept: true}},
		},
		"LabelsReplaced": {
			reason:     "unless the operator says otherwise",
			pod:        gen.Pod("web", gen.Label("a.prebind.dev/k", "theirs")),
			binding:    []gen.BindingOption{gen.Label("a.prebind.dev/l", "theirs")},
			chain:      []Mutator{replaces("a", "k", "ours", "l", "ours", "m", "ours")},
			wantLabels: pairs("a.prebind.dev/k", "ours", "a.prebind.dev/l", "ours", "a.prebind.dev/m", "ours"),
			conflicts: []Conflict{
				{Mutator: "a", Field: "label", Key: "a.prebind.dev/k", Source: "pod"},
				{Mutator: "a", Field: "label", Key: "a.prebind.dev/l", Source: "Binding"},
			},
		},
		"EachForItself": {
			reason:     "that one mutator replaces labels says nothing of another",
			pod:        gen.Pod("web", gen.Label("a.prebind.dev/k", "theirs"), gen.Label("b.prebind.dev/k", "theirs")),
			chain:      []Mutator{replaces("a", "k", "ours"), labels("b", "k", "ours")},
			wantLabels: pairs("a.prebind.dev/k", "ours"),
			conflicts: []Conflict{
				{Mutator: "a", Field: "label", Key: "a.prebind.dev/k", Source: "pod"},
				{Mutator: "b", Field: "label", Key: "b.prebind.dev/k", Source: "pod", Kept: true},
			},
		},
		"FieldsApart": {
			reason:     "a label is no annotation of the same key",
			pod:        gen.Pod("web", gen.Label("a.prebind.dev/k", "theirs")),
			binding:    []gen.BindingOption{gen.Annotation("a.prebind.dev/l", "theirs")},
			chain:      []Mutator{returns("a", Output{Annotations: pairs("k", "ours"), Labels: pairs("l", "ours")})},
			want:       pairs("a.prebind.dev/k", "ours"),
			wantLabels: pairs("a.prebind.dev/l", "ours"),
		},
		"InOrder": {
			reason: "by mutator, then annotations before labels, then by key",
			binding: []gen.BindingOption{
				gen.Annotation("a.prebind.dev/k", "x"), gen.Annotation("b.prebind.dev/k", "x"), gen.Annotation("b.prebind.dev/a", "x"), gen.Label("b.prebind.dev/b", "x"),
				gen.Label("b.prebind.dev/a", "x"),
			},
			chain: []Mutator{returns("b", Output{Annotations: pairs("k", "1", "a", "1"), Labels: pairs("b", "1", "a", "1")}), writes("a", "k", "1")},
			want:  pairs("a.prebind.dev/k", "1", "b.prebind.dev/k", "1", "b.prebind.dev/a", "1"),
			conflicts: []Conflict{
				{Mutator: "b", Field: "annotation", Key: "b.prebind.dev/a", Source: "Binding"},
				{Mutator: "b", Field: "annotation", Key: "b.prebind.dev/k", Source: "Binding"},
				{Mutator: "b", Field: "label", Key: "b.prebind.dev/a", Source: "Binding", Kept: true},
				{Mutator: "b", Field: "label", Key: "b.prebind.dev/b", Source: "Binding", Kept: true},
				{Mutator: "a", Field: "annotation", Key: "a.prebind.dev/k", Source: "Binding"},
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in, before := input(tc.pod, tc.binding...), input(tc.pod, tc.binding...)
			before.Pod = before.Pod.DeepCopy()
			c := newChain(t, tc.chain...)

			got := c.Mutate(in)

			assert.Equal(t, orEmpty(tc.want), got.Annotations, tc.reason)
			assert.Equal(t, orEmpty(tc.wantLabels), got.Labels, tc.reason)
			assert.Equal(t, tc.conflicts, got.Conflicts, tc.reason)
			var failed []string
			for _, f := range got.Failures {
				failed = append(failed, f.Mutator)
				assert.Error(t, f.Err)
			}
			assert.Equal(t, tc.failed, failed, tc.reason)
			assert.Nil(t, got.Refused, "none is required")
			assert.Equal(t, before, in, "the input is shared and does not change")
		})
	}
}

// orEmpty is m, or an empty map: a Result has no nil maps.
func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func TestRequired(t *testing.T) {
	invalid := labels("a", "k", "not valid")
	cases := map[string]struct {
		reason string
		chain  []Mutator
		// refusing is the mutator that ends the bind; empty for none.
		refusing string
		// says is part of the refusal.
		says string
		// failed are reported all the same.
		failed []string
		want   map[string]string
	}{
		"Fine":          {reason: "a complete output is all that is required", chain: []Mutator{writes("a", "k", "1")}, want: pairs("a.prebind.dev/k", "1")},
		"NothingToSay":  {reason: "an empty output is complete where nothing is missing", chain: []Mutator{returns("a", Output{})}},
		"Fails":         {reason: "its error refuses the bind", chain: []Mutator{fails("a")}, refusing: "a", says: "failed: no", failed: []string{"a"}},
		"Panics":        {reason: "so does a panic", chain: []Mutator{panics("a")}, refusing: "a", says: "panic: boom", failed: []string{"a"}},
		"InvalidKey":    {reason: "so does an output that is left out", chain: []Mutator{writes("a", "x/y", "1")}, refusing: "a", says: `"x/y"`, failed: []string{"a"}},
		"InvalidValue":  {reason: "for whatever it is", chain: []Mutator{invalid}, refusing: "a", says: "not valid", failed: []string{"a"}},
		"Missing":       {reason: "half an output is not enough", chain: []Mutator{misses("a", "the node has no label x", "the node has no label y")}, refusing: "a", says: "but the node has no label x, the node has no label y", want: pairs("a.prebind.dev/half", "done")},
		"OtherFails":    {reason: "one that is not required is left out and reported", chain: []Mutator{fails("x"), writes("a", "k", "1"), panics("y")}, failed: []string{"x", "y"}, want: pairs("a.prebind.dev/k", "1")},
		"OtherMisses":   {reason: "nor is it asked what it misses", chain: []Mutator{misses("x", "all"), writes("a", "k", "1")}, want: pairs("x.prebind.dev/half", "done", "a.prebind.dev/k", "1")},
		"FirstCounts":   {reason: "the first in the order of the chain is told of", chain: []Mutator{misses("b", "one"), fails("a")}, refusing: "b", says: "one", failed: []string{"a"}, want: pairs("b.prebind.dev/half", "done")},
		"OthersGoOn":    {reason: "the result is whole for those who look at it, as a dry run does", chain: []Mutator{fails("a"), writes("b", "k", "1")}, refusing: "a", says: "no", failed: []string{"a"}, want: pairs("b.prebind.dev/k", "1")},
		"FailsAndLacks": {reason: "an output beside an error counts for nothing", chain: []Mutator{fails("b"), writes("a", "k", "1")}, refusing: "b", says: "failed: no", failed: []string{"b"}, want: pairs("a.prebind.dev/k", "1")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			required := []string{}
			for _, m := range tc.chain {
				if m.Name() == "a" || m.Name() == "b" {
					required = append(required, m.Name())
				}
			}
			c, err := NewChain(Options{Mutators: tc.chain, Required: required})
			require.NoError(t, err)

			got := c.Mutate(input(nil))

			var failed []string
			for _, f := range got.Failures {
				failed = append(failed, f.Mutator)
			}
			assert.Equal(t, tc.failed, failed, tc.reason)
			assert.Equal(t, orEmpty(tc.want), got.Annotations, tc.reason)
			if tc.refusing == "" {
				assert.Nil(t, got.Refused, tc.reason)
				return
			}
			require.NotNil(t, got.Refused, tc.reason)
			assert.Equal(t, tc.refusing, got.Refused.Mutator)
			assert.Contains(t, got.Refused.Message, tc.says, tc.reason)
			assert.NotEmpty(t, got.Refused.Advice, "every refusal says what to do")
		})
	}
}

func TestRefusalKeepsItsCause(t *testing.T) {
	c, err := NewChain(Options{Mutators: []Mutator{fails("a")}, Required: []string{"a"}})
	require.NoError(t, err)
	assert.ErrorIs(t, c.Mutate(input(nil)).Refused, errNo)
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
	c, err := NewChain(Options{Mutators: []Mutator{note("c"), note("a"), note("b")}})
	require.NoError(t, err)
	got := c.Mutate(input(nil))
	assert.Equal(t, []string{"c", "a", "b"}, order)
	assert.Equal(t, []string{"c", "a", "b"}, c.Names())
	assert.Contains(t, got.Annotations, "a.prebind.dev/k")
	got.Annotations["x"], got.Labels["x"] = "y", "y"
	again := c.Mutate(input(nil))
	assert.NotContains(t, again.Annotations, "x", "the caller owns the map")
	assert.NotContains(t, again.Labels, "x", "the caller owns the map")
	c.Names()[0] = "x"
	assert.Equal(t, []string{"c", "a", "b"}, c.Names(), "the caller owns the slice")
}

func TestMutatorKeepsItsMaps(t *testing.T) {
	out := Output{Annotations: pairs("k", "1"), Labels: pairs("k", "1")}
	c := newChain(t, returns("a", out))
	c.Mutate(input(nil))
	assert.Equal(t, Output{Annotations: pairs("k", "1"), Labels: pairs("k", "1")}, out, "a mutator may return the same maps every time")
}

func TestFailure(t *testing.T) {
	got := newChain(t, fails("a"), panics("b")).Mutate(input(nil))
	require.Len(t, got.Failures, 2)
	assert.ErrorIs(t, got.Failures[0].Err, errNo)
	assert.Empty(t, got.Failures[0].Stack)
	assert.ErrorContains(t, got.Failures[1].Err, "boom")
	assert.Contains(t, got.Failures[1].Stack, "chain_test.go", "the stack leads to the mistake")
}

func TestFailureIsTheSameEveryTime(t *testing.T) {
	cases := map[string]struct {
		reason string
		out    Output
		says   string
	}{
		"Keys":   {reason: "the first of the bad keys", out: Output{Annotations: pairs("a", "", "b/c", "", "b d", "", "z z", "")}, says: `"b d"`},
		"Values": {reason: "the first of the bad values", out: Output{Labels: pairs("a", "", "b", "/", "c", "/", "d", "/")}, says: `the label "b"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newChain(t, returns("a", tc.out))
			for range 20 {
				got := c.Mutate(input(nil))
				require.Len(t, got.Failures, 1)
				require.ErrorContains(t, got.Failures[0].Err, tc.says, tc.reason)
			}
		})
	}
}

func TestConflictString(t *testing.T) {
	c := Conflict{Mutator: "topology", Field: "label", Key: "topology.prebind.dev/zone", Source: "pod", Kept: true}
	assert.Equal(t, "topology: kept the pod's value of label topology.prebind.dev/zone", c.String())
	c.Kept = false
	assert.Equal(t, "topology: replaced the pod's value of label topology.prebind.dev/zone", c.String())
}

func BenchmarkChain(b *testing.B) {
	var list []Mutator
	for i := range 4 {
		out := Output{Annotations: map[string]string{}, Labels: pairs("zone", "z1", "rack", "r7")}
		for j := range 8 {
			out.Annotations[fmt.Sprintf("some-key-%d", j)] = "some value"
		}
		list = append(list, returns(fmt.Sprintf("mutator-%d", i), out))
	}
	c, in := newChain(b, list...), input(nil)
	b.ReportAllocs()
	for b.Loop() {
		c.Mutate(in)
	}
}

// TestChanging: a value of the mutator's own, from the call before, is no conflict;
// one that stood on the pod is.
func TestChanging(t *testing.T) {
	m := fake{name: "a", mutate: func(Input) (Output, error) {
		return Output{Annotations: map[string]string{"time": "2", "user": "u"}, Changing: []string{"time"}}, nil
	}}
	c, err := NewChain(Options{Mutators: []Mutator{m}})
	require.NoError(t, err)
	run := func(pod *corev1.Pod, options ...gen.BindingOption) []Conflict {
		return c.Mutate(Input{Pod: pod, Node: gen.Node("node-a"), Binding: gen.Binding(pod, "node-a", options...)}).Conflicts
	}
	pod := gen.Pod("web")
	assert.Empty(t, run(pod, gen.Annotation("a.prebind.dev/time", "1")))
	assert.Len(t, run(pod, gen.Annotation("a.prebind.dev/time", "1"), gen.Annotation("a.prebind.dev/user", "x")), 1)
	assert.Len(t, run(gen.Pod("web", gen.Annotation("a.prebind.dev/time", "1"))), 1)
}
