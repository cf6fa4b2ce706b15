// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutators

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
		"FirstCounts":   {reason: "the first failure in the order of the chain is reported", chain: []Mutator{misses("b", "one"), fails("a")}, refusing: "b", says: "one", failed: []string{"a"}, want: pairs("b.prebind.dev/half", "done")},
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
