// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/internal/policy"
)

// A call whose work costs more than an expression may fails before it runs: it needs little time and memory.
func TestEvaluate_WorkLimit(t *testing.T) {
	cases := map[string]struct {
		reason, expression string
	}{
		"Replace":        {reason: "each character is replaced by an annotation", expression: "A.replace(A.substring(0, 1), B) == ''"},
		"ReplaceEmpty":   {reason: "the empty string is between all characters", expression: "A.replace('', B) == ''"},
		"Join":           {reason: "a separator is between all elements", expression: "A.split('').join(B) == ''"},
		"Format":         {reason: "the arguments are large", expression: "'%s%s%s'.format([C, C, C]) == ''"},
		"FormatList":     {reason: "the lists in a list count", expression: "'%s'.format([lists.range(100).map(i, [B, B])]) == ''"},
		"FormatNested":   {reason: "lists share elements", expression: "'%s'.format([variables.v19]) == ''"},
		"FormatDigits":   {reason: "the precision makes zeros", expression: "'%.9999f'.format([1.0]) == ''"},
		"Quote":          {reason: "each call doubles the backslashes", expression: strings.Repeat("strings.quote(", 19) + "'\\\\'" + strings.Repeat(")", 19) + " == ''"},
		"Flatten":        {reason: "lists share elements", expression: "variables.v19.flatten(20) == []"},
		"AddString":      {reason: "the strings are large together", expression: "C + C + C + C + C + C == ''"},
		"AddList":        {reason: "the lists are long together", expression: "(A.split('')" + strings.Repeat(" + A.split('')", 5) + ").size() == 0"},
		"Range":          {reason: "the list is long", expression: "lists.range(1000000000) == []"},
		"Equal":          {reason: "lists share elements", expression: "variables.v19 == variables.w19"},
		"NotEqual":       {reason: "lists share elements", expression: "variables.v19 != variables.w19"},
		"EqualOptional":  {reason: "lists share elements", expression: "optional.of(variables.v19) == optional.of(variables.w19)"},
		"In":             {reason: "lists share elements", expression: "variables.v18 in variables.w19"},
		"IndexOf":        {reason: "each position is compared", expression: "C.indexOf(B) > 0 || C.indexOf(B, 1) > 0"},
		"LastIndexOf":    {reason: "each position is compared", expression: "C.lastIndexOf(B) > 0"},
		"ListIndexOf":    {reason: "lists share elements", expression: "variables.w19.indexOf(variables.v18) > 0"},
		"ListIncludes":   {reason: "lists share elements", expression: "variables.w19.includes(variables.v18)"},
		"Sum":            {reason: "lists share elements", expression: "dyn(variables.w19).sum() == 0 || dyn(variables.w19).isSorted()"},
		"Matches":        {reason: "each state is compared", expression: "C.matches(B)"},
		"MatchesDyn":     {reason: "each state is compared", expression: "matches(dyn(C), dyn(B))"},
		"Find":           {reason: "each state is compared", expression: "C.find(B) == ''"},
		"FindAll":        {reason: "each state is compared", expression: "C.findAll(B, 1) == []"},
		"Distinct":       {reason: "each pair is compared", expression: "A.split('').distinct() == []"},
		"DistinctNested": {reason: "lists share elements", expression: "[variables.v19, variables.w19].distinct() == []"},
		"SetsIntersects": {reason: "each pair is compared", expression: "sets.intersects(A.split(''), A.split(''))"},
		"SetsContains":   {reason: "the texts are long", expression: "sets.contains([C, C, C, C, C], lists.range(1000).map(i, C))"},
		"Exponent":       {reason: "the time is exponential in the digits", expression: "quantity('1E+0020000000').isInteger()"},
		"Quantity":       {reason: "the time is quadratic in the digits", expression: "isQuantity(C)"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			spec := "variables:\n- {name: a, expression: \"node.metadata.annotations['a']\"}\n- {name: b, expression: \"node.metadata.annotations['b']\"}\n- {name: c, expression: \"node.metadata.annotations['c']\"}\n"
			for _, list := range []string{"v", "w"} {
				spec += "- {name: " + list + "0, expression: '[1, 2]'}\n"
				for i := range 19 {
					spec += fmt.Sprintf("- {name: %[1]s%[2]d, expression: '[variables.%[1]s%[3]d, variables.%[1]s%[3]d]'}\n", list, i+1, i)
				}
			}
			c := compile(t, spec+validation(strings.NewReplacer("findAll", "findAll", "A", "variables.a", "B", "variables.b", "C", "variables.c").Replace(tc.expression)))
			s := subject()
			s.Node.Annotations = map[string]string{"a": strings.Repeat("a", 20_000), "b": strings.Repeat("b", 20_000), "c": strings.Repeat("c", 200_000)}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			r, err := c.Evaluate(t.Context(), s, world())
			elapsed := time.Since(start)
			runtime.ReadMemStats(&after)
			require.NoError(t, err)
			assert.Equal(t, policy.Failed, r.Verdict, tc.reason)
			assert.Contains(t, r.Message, "cost limit", tc.reason)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), tc.reason)
			assert.Less(t, elapsed, slow)
		})
	}
	for _, expression := range []string{
		"quantity('1e3').isInteger()", "quantity('100Ei') == quantity('100Ei')", "quantity('1.5E2') == quantity('150')", "isIP('10.0.0.1')",
		"lists.range(200).map(i, string(i)).distinct().size() == 200", "sets.intersects(lists.range(100), lists.range(100))", "[[1], [2]].flatten() == [1, 2]",
		"'aa'.replace('a', '0123456789'.replace('', '0123456789')).size() == 240",
	} {
		r := evaluate(t, validation(expression), subject(), world())
		assert.Equal(t, policy.Allowed, r.Verdict, "%s: %s", expression, r.Message)
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
			spec := validation("lists.range(1000).map(i, " + strings.ReplaceAll(expression, "B", "node.metadata.annotations['b']") + ") != []")
			r := evaluate(t, spec, s, world())
			assert.Equal(t, policy.Failed, r.Verdict)
			assert.Contains(t, r.Message, "cost limit exceeded")
			assert.Less(t, r.Cost, uint64(150_000))
		})
	}
}

// The data of a tenant decides neither the time to compile a pattern that is not constant nor that to read a time zone. Constant patterns are
// compiled with the policy.
func TestEvaluate_DataCost(t *testing.T) {
	type dataCase struct {
		reason, expression, data string
		want                     policy.Verdict
	}
	cases := map[string]dataCase{
		"Repetition":  {reason: "seven bytes are 1,000 states", expression: "''.matches(variables.d)", data: "x{1000}", want: policy.Failed},
		"Unicode":     {reason: "a class has hundreds of ranges", expression: "''.find(variables.d) == 'x'", data: `[^\pL]`, want: policy.Failed},
		"Flag":        {reason: "each character of a range is folded", expression: "''.findAll(variables.d) == []", data: "(?i:[B-\U0010FFFF])", want: policy.Failed},
		"Concatenate": {reason: "a part of the pattern is data", expression: "''.matches('(?i:' + variables.d + ')')", data: "[B-\U0010FFFF]", want: policy.Failed},
		"Dyn":         {reason: "the type does not matter", expression: "matches(dyn(''), dyn(variables.d))", data: `\PL`, want: policy.Failed},
		"Patterns":    {reason: "each call compiles the pattern", expression: "lists.range(6000).all(i, 'node'.matches(variables.d))", data: "(n)(o)(d)(e)", want: policy.Failed},
		"Pattern":     {reason: "few calls are cheap", expression: "lists.range(100).all(i, 'node-a'.matches(variables.d))", data: "^node-([a-c]|x)?$", want: policy.Allowed},
		"Constant":    {reason: "the policy contains the pattern", expression: "lists.range(6000).all(i, ''.matches('^(?i:[a-z]{0,61})$'))", want: policy.Allowed},
		"Zones":       {reason: "each call reads a file", expression: "lists.range(6000).all(i, variables.t.getHours(variables.d) >= 0)", data: "Europe/Berlin", want: policy.Failed},
		"LongZone":    {reason: "the name is copied for each directory", expression: "lists.range(6).exists(i, variables.t.getHours(variables.d) == i)", data: strings.Repeat("x", 30_000), want: policy.Failed},
		"Zone":        {reason: "some calls are cheap", expression: "lists.range(1000).all(i, variables.t.getHours(variables.d) >= 0)", data: "UTC", want: policy.Allowed},
	}
	for _, call := range []string{
		"@.substring(i, i + 2000).matches('[a-z]{1,200}X')", "@.substring(i, i + 2000).find('[a-z]{1,200}X') == 'X'", "@.charAt(i) == 'x'", "@.size() == i", "bool(@)", "int(@) == i", "uint(@) == 1u", "double(@) < 1.0", "duration(@) < duration('1h')", "timestamp(@) < timestamp('2026-01-01T00:00:00Z')",
		"variables.url.getEscapedPath() == 'x'", "'x' in variables.url.getQuery()", "variables.url == variables.url && i < 0",
	} {
		cases[call] = dataCase{
			reason: "a call costs as much as what it reads, so that an expression cannot repeat it often", want: policy.Failed,
			expression: "lists.range(1000).exists(i, " + strings.ReplaceAll(call, "@", "variables.d") + ")", data: strings.Repeat("1", 20_000),
		}
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := subject()
			s.Node.Annotations = map[string]string{"d": tc.data}
			spec := "variables:\n- {name: d, expression: \"node.metadata.annotations['d']\"}\n- {name: t, expression: \"timestamp('2026-01-02T03:04:05Z')\"}\n" +
				"- {name: url, expression: \"url('http://a/' + variables.d + '?' + variables.d)\"}\n" + validation(tc.expression)
			r := evaluate(t, spec, s, world())
			require.Equal(t, tc.want, r.Verdict, "%s: %s", tc.reason, r.Message)
			if tc.want == policy.Failed {
				assert.Contains(t, r.Message, "cost limit", tc.reason)
			}
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
		"[1, [2]] == [1, [2.0]]", "dyn([1]) != [1u]", "{'a': [1]} == {'a': [1]}", "dyn([1]) == 'x'", "dyn(1) != 'x'", "[1] in [[1], [2]]", "[3] in [[1]]", "1 in {1: 2}", "'a' in dyn(1)", "[][0] == 1", "[1, [][0]] != [1]",
		"'äö'.size()", "b'äö'.size()", "[1].size()", "size({1: 2})", "size('ab')", "'äö'.charAt(1)", "'a'.charAt(1)", "'a'.charAt(2)", "int('12')", "int('x' + 'y')", "int(1.5)", "int(timestamp(5))", "uint('1')", "double('1.5')", "bool('true')",
		"duration('1h')", "timestamp('2026-01-02T03:04:05Z')", "timestamp(5)", "url('http://a/b%20?c=d').getQuery()", "url('http://a/b ').getEscapedPath()", "[1, 2].includes(2)", "url('http://a') == url('http://a')",
		"optional.of([1]) == optional.of([1])", "optional.none() != optional.of(1)", "['a', 'b', 'a'].distinct()", "[[1], [1.0], [2]].distinct()", "sets.contains([1, 2], [2])",
	} {
		t.Run(expression, func(t *testing.T) {
			// The text has the type and the value.
			text := "'%s %s'.format([type(" + expression + "), " + expression + "])"
			ast, issues := base.Compile(text)
			require.NoError(t, issues.Err())
			program, err := base.Program(ast)
			require.NoError(t, err)
			want, _, failed := program.Eval(cel.NoVars())
			r := evaluate(t, "mutations: {annotations: [{key: a, valueExpression: "+quoted(text)+"}]}", subject(), world())
			if failed != nil {
				assert.Equal(t, "spec.mutations.annotations[p.policy.prebind.dev/a]: "+failed.Error(), r.Message)
				return
			}
			require.Equal(t, policy.Allowed, r.Verdict, r.Message)
			assert.Equal(t, want.Value(), r.Annotations["p.policy.prebind.dev/a"])
		})
	}
}

// A policy reads a limited amount for each bind, because tenants create the objects.
func TestEvaluate_ReadLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, message string
		change          func(s *policy.Subject, o *objects)
	}{
		"Objects": {reason: "a list may be long", message: "spec.resources[agents]: more than 1000 objects", change: func(_ *policy.Subject, o *objects) {
			o.resources["agents"] = large(1001)
		}},
		"Object": {reason: "an object may be large", message: "claims: demo/data-0 is larger than 32 KiB", change: func(_ *policy.Subject, o *objects) {
			o.resources["claims"][0].SetAnnotations(map[string]string{"a": strings.Repeat("x", policy.MaxObject)})
		}},
		"Size": {reason: "all objects together may be large", message: "spec.resources[agents]: the policy reads more than 4 MiB of objects", change: func(_ *policy.Subject, o *objects) {
			o.resources["agents"] = large(200)
			for _, agent := range o.resources["agents"] {
				agent.SetAnnotations(map[string]string{"a": strings.Repeat("x", 30<<10)})
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, o := subject(), world()
			tc.change(s, o)
			r := evaluate(t, declared+validation("size(claims) > 0 && size(resources.agents) > 0"), s, o)
			assert.Equal(t, policy.Failed, r.Verdict, tc.reason)
			assert.Contains(t, r.Message, tc.message, tc.reason)
		})
	}
}

func TestEvaluate_NoAllocationWithoutMatch(t *testing.T) {
	s, o, ctx := subject(), world(), t.Context()
	s.Pod.Labels = map[string]string{"app": "web"}
	for _, match := range []string{
		"{podSelector: {matchLabels: {app: db}}}", "{nodeSelector: {matchLabels: {a: b}}}", "{schedulerNames: [volcano]}",
	} {
		c := compile(t, "matchConstraints: "+match+"\n"+validation("false"))
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if r, err := c.Evaluate(ctx, s, o); err != nil || r.Verdict != policy.NotMatched {
				t.Error(r, err)
			}
		}), match)
	}
}

// All policies use one copy of the pod: 200 policies, of which each copied a large pod, needed 130 ms.
func TestEvaluate_CopiesPodOnce(t *testing.T) {
	c := compile(t, validation("pod.metadata.name == object.metadata.name"))
	s := subject()
	for range 100 {
		s.Pod.Spec.Containers = append(s.Pod.Spec.Containers, corev1.Container{Env: make([]corev1.EnvVar, 1)})
		s.Binding.OwnerReferences = append(s.Binding.OwnerReferences, metav1.OwnerReference{Controller: new(true)})
	}
	allocations := testing.AllocsPerRun(10, func() {
		_, err := c.Evaluate(t.Context(), s, world())
		assert.NoError(t, err)
	})
	assert.Less(t, allocations, 100.0)
}

// large is a list that takes long to iterate over several times.
func large(n int) []client.Object {
	list := make([]client.Object, n)
	for i := range list {
		list[i] = &corev1.Pod{ObjectMeta: meta(fmt.Sprint("pod-", i))}
	}
	return list
}

// Each expression is below its limit, but not all together. Variables count.
func TestEvaluate_CostBudget(t *testing.T) {
	for name, spec := range map[string]string{
		"Validations": "validations:\n" + strings.Repeat("- {expression: \"!node.metadata.annotations['a'].contains('yyyyyyyyyy')\"}\n", 64),
		"Variables": "variables:\n" + func() string {
			text := ""
			for i := range 64 {
				text += fmt.Sprintf("- {name: v%d, expression: \"!node.metadata.annotations['a'].contains('yyyyyyyyyy')\"}\n", i)
			}
			return text
		}() + validation("["+strings.Join(func() (all []string) {
			for i := range 64 {
				all = append(all, fmt.Sprintf("variables.v%d", i))
			}
			return all
		}(), ",")+"].all(x, x)"),
	} {
		t.Run(name, func(t *testing.T) {
			s := subject()
			s.Node.Annotations = map[string]string{"a": strings.Repeat("x", 300<<10)}
			r := evaluate(t, spec, s, world())
			assert.Equal(t, policy.Failed, r.Verdict)
			assert.Contains(t, r.Message, "exceed the cost limit per bind")
			assert.Greater(t, r.Cost, uint64(1_000_000))
			assert.Less(t, r.Cost, uint64(1_200_000))
		})
	}
}

// The end of the context interrupts a comprehension, and is not the fault of the policy.
func TestEvaluate_ContextEnds(t *testing.T) {
	o := world()
	o.resources["agents"] = large(1000)
	c := compile(t, "failurePolicy: Ignore\n"+declared+validation("resources.agents.all(a, a.metadata.name != 'x')"))
	ctx, cancel := context.WithCancel(t.Context())
	o.before = cancel
	r, err := c.Evaluate(ctx, subject(), o)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, r)
	r, err = c.Evaluate(ctx, subject(), o)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, r)
}

func TestEvaluate_Panic(t *testing.T) {
	for _, spec := range []string{
		declared + validation("resources.agents.size() == 0"),
		"matchConstraints: {namespaceSelector: {matchLabels: {a: b}}}\n" + validation("true"),
	} {
		o := world()
		o.before = func() { panic("defect") }
		r := evaluate(t, spec, subject(), o)
		assert.Equal(t, policy.Failed, r.Verdict)
		assert.Contains(t, r.Message, "defect")
	}
}
