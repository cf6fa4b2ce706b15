// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/mutators"
)

func TestChain_Required(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		chain  []mutators.Mutator
		// refusing is the mutator that rejects the bind. It is empty for none.
		refusing string
		// says is part of the error.
		says string
		// failed lists the mutators whose failures are reported.
		failed []string
		want   map[string]string
	}{
		"Missing":     {reason: "missing values of a required mutator reject the bind", chain: []mutators.Mutator{misses("a", "the node has no label x", "the node has no label y")}, refusing: "a", says: "but the node has no label x, the node has no label y", want: pairs("a.prebind.dev/half", "done")},
		"OtherFails":  {reason: "other mutators that fail are skipped and reported", chain: []mutators.Mutator{fails("x"), writes("a", "k", "1"), panics("y")}, failed: []string{"x", "y"}, want: pairs("a.prebind.dev/k", "1")},
		"OtherMisses": {reason: "missing values of other mutators are ignored", chain: []mutators.Mutator{misses("x", "all"), writes("a", "k", "1")}, want: pairs("x.prebind.dev/half", "done", "a.prebind.dev/k", "1")},
		"FirstCounts": {reason: "the first failure in the order of the chain is reported", chain: []mutators.Mutator{misses("b", "one"), fails("a")}, refusing: "b", says: "one", failed: []string{"a"}, want: pairs("b.prebind.dev/half", "done")},
		"OthersGoOn": {
			reason: "the other mutators run, because a dry run shows their output", chain: []mutators.Mutator{fails("a"), writes("b", "k", "1")},
			refusing: "a", says: "failed: no", failed: []string{"a"}, want: pairs("b.prebind.dev/k", "1"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			required := []string{}
			for _, m := range tc.chain {
				if m.Name() == "a" || m.Name() == "b" {
					required = append(required, m.Name())
				}
			}
			c := NewChain(tc.chain, required)

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
			assert.NotEmpty(t, got.Refused.Advice, "every refusal has a remedy")
		})
	}
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
		c := newChain(returns("a", out))
		for range 20 {
			got := c.Mutate(input(nil))
			require.Len(t, got.Failures, 1)
			require.ErrorContains(t, got.Failures[0].Err, says)
		}
	}
}
