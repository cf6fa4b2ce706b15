// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/prebind/prebind/internal/policy"
)

// Functions cannot make large strings or lists, and fail before they use the memory.
func TestEvaluate_ResultLimit(t *testing.T) {
	cases := map[string]struct {
		reason, expression, message string
	}{
		"Replace":      {reason: "each character is replaced by an annotation", expression: "A.replace(A.substring(0, 1), B) == ''", message: "replace: result is larger than 256 KiB"},
		"ReplaceEmpty": {reason: "the empty string is between all characters", expression: "A.replace('', B) == ''", message: "replace: result is larger than 256 KiB"},
		"Join":         {reason: "a separator is between all elements", expression: "A.split('').join(B) == ''", message: "join: result is larger than 256 KiB"},
		"Format":       {reason: "the arguments are large", expression: "'%s%s%s%s%s%s%s%s%s%s%s%s%s%s'.format([A, A, A, A, A, A, A, A, A, A, A, A, A, A]) == ''", message: "format: result is larger than 256 KiB"},
		"FormatList":   {reason: "the lists in a list count", expression: "'%s'.format([lists.range(100).map(i, [B, B])]) == ''", message: "format: result is larger than 256 KiB"},
		"FormatNested": {reason: "lists share elements", expression: "'%s'.format([variables.v19]) == ''", message: "format: result is larger than 256 KiB"},
		"FormatDigits": {reason: "the precision makes zeros", expression: "'%.9999f'.format([1.0]) == ''", message: "format: the precision has more than 3 digits"},
		"FormatHex":    {reason: "a byte has two digits", expression: "'%x%x%x%x%x%x%x'.format([A, A, A, A, A, A, A]) == ''", message: "format: result is larger than 256 KiB"},
		"Quote":        {reason: "each call doubles the backslashes", expression: strings.Repeat("strings.quote(", 19) + "'\\\\'" + strings.Repeat(")", 19) + " == ''", message: "strings.quote: result is larger than 256 KiB"},
		"AddString":    {reason: "the strings are large together", expression: "C + C == ''", message: "+: result is larger than 256 KiB"},
		"AddBytes":     {reason: "the bytes are large together", expression: "bytes(C) + bytes(C) == b''", message: "+: result is larger than 256 KiB"},
		"AddList":      {reason: "the lists are long together", expression: "A.split('')" + strings.Repeat(" + A.split('')", 5) + " == []", message: "+: the list has more than 100000 elements"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			spec := "variables:\n- {name: a, expression: \"node.metadata.annotations['a']\"}\n- {name: b, expression: \"node.metadata.annotations['b']\"}\n- {name: c, expression: \"node.metadata.annotations['c']\"}\n- {name: v0, expression: '[1, 2]'}\n"
			for i := range 19 {
				spec += fmt.Sprintf("- {name: v%d, expression: '[variables.v%d, variables.v%d]'}\n", i+1, i, i)
			}
			c := compile(t, spec+validation(strings.NewReplacer("A", "variables.a", "B", "variables.b", "C", "variables.c").Replace(tc.expression)))
			s := subject()
			s.Node.Annotations = map[string]string{"a": strings.Repeat("a", 20_000), "b": strings.Repeat("b", 20_000), "c": strings.Repeat("c", 200_000)}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r, err := c.Evaluate(t.Context(), s, world())
			runtime.ReadMemStats(&after)
			require.NoError(t, err)
			assert.Equal(t, policy.Failed, r.Verdict, tc.reason)
			assert.Equal(t, "spec.validations[0]: "+tc.message, r.Message, tc.reason)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), tc.reason)
		})
	}
}

// The result of a call costs as much as its size, so that an expression cannot collect many.
func TestEvaluate_ResultCost(t *testing.T) {
	for name, expression := range map[string]string{
		"Replace": "'aa'.replace('a', B)",
		"Format":  "'%s'.format([B])",
	} {
		t.Run(name, func(t *testing.T) {
			s := subject()
			s.Node.Annotations = map[string]string{"b": strings.Repeat("b", 100_000)}
			c := compile(t, validation("lists.range(1000).map(i, "+strings.ReplaceAll(expression, "B", "node.metadata.annotations['b']")+") != []"))
			r, err := c.Evaluate(t.Context(), s, world())
			require.NoError(t, err)
			assert.Equal(t, policy.Failed, r.Verdict)
			assert.Contains(t, r.Message, "cost limit exceeded")
			assert.Less(t, r.Cost, uint64(150_000))
		})
	}
}

// Functions with a limit have the same results as those of Kubernetes.
func TestEvaluate_SameResults(t *testing.T) {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).StoredExpressionsEnv()
	for _, expression := range []string{
		"'abcabc'.replace('b', 'xy')", "'abc'.replace('', '-')", "'abc'.replace('x', 'y')", "''.replace('', 'x')", "'aaa'.replace('a', '')", "'äöü'.replace('ö', 'o')",
		"'aaa'.replace('a', 'b', 2)", "'aaa'.replace('a', 'b', 0)", "'aaa'.replace('a', 'b', -1)", "'aaa'.replace('', 'b', 2)", "dyn('aaa').replace('a', dyn('b'))", "dyn('a').replace('a', dyn(1))",
		"['a', 'b'].join()", "['a', 'b'].join(', ')", "[].join(',')", "['a'].join(',')", "[dyn('a'), dyn(1)].join(',')", "dyn(['a', 'b']).join('-')", "dyn(1).join('-')",
		"'%s and %s'.format(['a', 1])", "'%d%%'.format([5])", "'%.2f|%f|%e'.format([1.234, 2.5, 3.0])", "'%x|%X|%b|%o'.format([255, 'hi', 5, 8])", "'%x'.format([b'xyz'])",
		"'%s'.format([['a', ['b', 1, 2.5, true, null]]])", "'%s'.format([{'b': 1, 'a': ['x']}])", "'%s|%s'.format([duration('1h'), timestamp('2026-01-02T03:04:05Z')])",
		"'%s'.format([type(1)])", "'%s'.format([b'abc'])", "'%s%s'.format(dyn(['a']))", "dyn('%.').format([1.0])", "dyn('%').format([1])", "dyn('%q').format([1])", "dyn('x').format([])",
		"strings.quote('a\"b\\\\c\\n')", "strings.quote('')", "strings.quote('äöü')",
		"'abcb'.indexOf('b')", "'abcb'.indexOf('b', 2)", "'abcb'.lastIndexOf('b')", "'abcb'.lastIndexOf('b', 2)", "[1, 2, 1].indexOf(1)", "[1, 2, 1].lastIndexOf(1)", "dyn('ab').indexOf(dyn('b'))",
		"'abc'.matches('b+')", "matches('abc', 'x')", "'abc'.matches('b' + '+')", "'abc'.matches('b' + '(')", "dyn('abc').matches(dyn('b'))", "dyn(1).matches(dyn('b'))", "'abc'.find('[bc]')", "'abc'.findAll('[bc]')", "'abc'.findAll('[bc]', 1)", "'abc'.find('b' + '(')",
		"'a' + 'b'", "b'a' + b'b'", "[1] + [2, 3]", "1 + 2", "1u + 2u", "1.5 + 2.0", "duration('1h') + duration('1m')", "timestamp('2026-01-02T03:04:05Z') + duration('1h')",
		"dyn('a') + dyn('b')", "dyn(1) + dyn('b')", "dyn(null) + dyn('b')", "dyn({}) + dyn({})", "dyn([1]) + dyn('x')", "9223372036854775807 + 1", "[1, 2, 3].map(i, i * 2)", "[1, 2, 3].filter(i, i > 1)", "[][0] + 'x'",
	} {
		t.Run(expression, func(t *testing.T) {
			// The text has the type and the value.
			text := "'%s %s'.format([type(" + expression + "), " + expression + "])"
			ast, issues := base.Compile(text)
			require.NoError(t, issues.Err())
			program, err := base.Program(ast)
			require.NoError(t, err)
			want, _, failed := program.Eval(cel.NoVars())
			r, err := compile(t, "mutations: {annotations: [{key: a, valueExpression: "+quoted(text)+"}]}").Evaluate(t.Context(), subject(), world())
			require.NoError(t, err)
			if failed != nil {
				assert.Equal(t, "spec.mutations.annotations[p.policy.prebind.dev/a]: "+failed.Error(), r.Message)
				return
			}
			require.Equal(t, policy.Allowed, r.Verdict, r.Message)
			assert.Equal(t, want.Value(), r.Annotations["p.policy.prebind.dev/a"])
		})
	}
}

// Searches in long texts fail before they begin.
func TestEvaluate_SearchLimit(t *testing.T) {
	for _, expression := range []string{"T.indexOf(P) > 0", "T.indexOf(P, 1) > 0", "T.lastIndexOf(P) > 0", "T.matches(P)", "matches(T, P)", "dyn(T).matches(dyn(P))", "T.find(P) == ''", "T.findAll(P) == []", "T.findAll(P, 1) == []"} {
		t.Run(expression, func(t *testing.T) {
			c := compile(t, validation(strings.NewReplacer("T", "node.metadata.annotations['a']", "P", "node.metadata.annotations['b']").Replace(expression)))
			s := subject()
			s.Node.Annotations = map[string]string{"a": strings.Repeat("a", 200_000), "b": strings.Repeat("a", 60_000) + "b"}
			timed(t, func() {
				r, err := c.Evaluate(t.Context(), s, world())
				require.NoError(t, err)
				assert.Equal(t, policy.Failed, r.Verdict)
				assert.Contains(t, r.Message, "cost limit")
			})
		})
	}
}

// Functions whose time is not linear in their arguments fail before they run.
func TestEvaluate_ArgumentLimit(t *testing.T) {
	for expression, message := range map[string]string{
		"quantity('1e20000000').isInteger()":                          "quantity: the exponent has more than 3 digits",
		"quantity('1E+0020000000').isInteger()":                       "quantity: the exponent has more than 3 digits",
		"isQuantity('1e-20000000')":                                   "isQuantity: the exponent has more than 3 digits",
		"quantity(T).isInteger()":                                     "quantity: the text is longer than 2048 bytes",
		"isIP(T)":                                                     "isIP: the text is longer than 2048 bytes",
		"cidr('10.0.0.0/8').containsIP(T)":                            "containsIP: the text is longer than 2048 bytes",
		"T.split(',').distinct() == []":                               "cost limit exceeded",
		"sets.intersects(T.split(','), T.split(','))":                 "cost limit exceeded",
		"sets.contains([T, T, T, T, T], lists.range(1000).map(i, T))": "sets.contains: comparing lists of 5 and 1000 elements exceeds the cost limit",
		"lists.range(1000000000) == []":                               "lists.range: the list has more than 100000 elements",
		"[variables.v].flatten(9) == []":                              "flatten: result is larger than 256 KiB",
	} {
		t.Run(expression, func(t *testing.T) {
			c := compile(t, `
variables:
- {name: t, expression: "node.metadata.annotations['t']"}
- {name: u, expression: "lists.range(1000).map(i, 1)"}
- {name: w, expression: "lists.range(20).map(i, variables.u)"}
- {name: v, expression: "lists.range(20).map(i, variables.w)"}
`+validation(strings.ReplaceAll(expression, "T", "variables.t")))
			s := subject()
			var names []string
			for i := range 30_000 {
				names = append(names, fmt.Sprint(i))
			}
			s.Node.Annotations = map[string]string{"t": strings.Join(names, ",")}
			timed(t, func() {
				r, err := c.Evaluate(t.Context(), s, world())
				require.NoError(t, err)
				assert.Equal(t, policy.Failed, r.Verdict)
				assert.Contains(t, r.Message, message)
			})
		})
	}
	for _, expression := range []string{
		"quantity('1e3').isInteger()", "quantity('100Ei') == quantity('100Ei')", "quantity('1.5E2') == quantity('150')", "isIP('10.0.0.1')",
		"lists.range(100).map(i, string(i)).distinct().size() == 100", "sets.intersects(lists.range(100), lists.range(100))", "[[1], [2]].flatten() == [1, 2]",
	} {
		r, err := compile(t, validation(expression)).Evaluate(t.Context(), subject(), world())
		require.NoError(t, err)
		assert.Equal(t, policy.Allowed, r.Verdict, "%s: %s", expression, r.Message)
	}
}

// Results that are as large as the limit are possible.
func TestEvaluate_ResultAtLimit(t *testing.T) {
	for _, expression := range []string{"'aa'.replace('a', C)", "'aaa'.replace('a', C, 2).substring(1)", "C + C"} {
		t.Run(expression, func(t *testing.T) {
			c := compile(t, validation(strings.ReplaceAll(expression, "C", "node.metadata.annotations['c']")+" != ''"))
			s := subject()
			for size, want := range map[int]policy.Verdict{128<<10 - 1: policy.Allowed, 128<<10 + 1: policy.Failed} {
				s.Node.Annotations = map[string]string{"c": strings.Repeat("c", size)}
				r, err := c.Evaluate(t.Context(), s, world())
				require.NoError(t, err)
				assert.Equal(t, want, r.Verdict, r.Message)
				assert.Equal(t, want == policy.Failed, strings.Contains(r.Message, "larger than 256 KiB"))
			}
		})
	}
}
