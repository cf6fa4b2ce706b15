// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/prebind/prebind/policy"
)

// generator writes random expressions over the objects of world. Values are dynamic, so most expressions compile.
type generator struct {
	*rand.Rand
	// locals are the variables of the comprehensions around the expression.
	locals []string
}

func (g *generator) pick(from ...string) string { return from[g.IntN(len(from))] }

// value returns an expression whose value is an object, a list or a field.
func (g *generator) value(depth int) string {
	if depth == 0 {
		return g.pick(append([]string{"dyn(resources.w.spec)", "dyn(resources.csinode)", "dyn(resources.agents)", "dyn(resources.agents[0])",
			"dyn(resources.csinode.spec.drivers)", "dyn(claims)", "dyn(namespaceObject)", "dyn(resources)", "dyn(resources.w.spec.map)", "dyn(variables.w)"}, append(g.locals, g.locals...)...)...)
	}
	v := g.value(depth - 1)
	field := g.pick("spec", "drivers", "name", "metadata", "labels", "map", "tags", "a", "b", "status", "phase", "size", "nodeID", "w", "csinode", "data")
	switch g.IntN(13) {
	case 0, 1, 2:
		return v + "." + field
	case 3:
		return v + "[" + quotedCEL(field) + "]"
	case 4:
		return v + g.pick("[0]", "[1]")
	case 5:
		return v + "[?" + quotedCEL(field) + "].orValue(" + g.value(depth-1) + ")"
	case 6:
		return v + ".?" + field + ".orValue(" + g.pick("dyn([])", "dyn({})", "dyn(null)") + ")"
	case 7:
		return "dyn(" + g.loop(v, "filter", func() string { return g.condition(depth - 1) }) + ")"
	case 8:
		return "dyn(" + g.loop(v, "map", func() string { return g.value(depth - 1) }) + ")"
	case 9:
		return "dyn(" + g.condition(depth-1) + " ? " + v + " : " + g.value(depth-1) + ")"
	case 10:
		return "dyn([" + v + ", " + g.value(depth-1) + "])" + g.pick("", "[0]", "[1]")
	case 11:
		return "dyn({'a': " + v + ", 'b': " + g.value(depth-1) + "})" + g.pick(".a", "['b']", "")
	default:
		return v + ".?" + field + ".optMap(o" + fmt.Sprint(depth) + ", " + g.with("o"+fmt.Sprint(depth), func() string { return g.value(depth - 1) }) + ").orValue(dyn(null))"
	}
}

// condition returns an expression whose value is a bool.
func (g *generator) condition(depth int) string {
	if depth <= 0 {
		return g.pick("true", g.value(0)+" != null")
	}
	v := g.value(depth - 1)
	field := g.pick("spec", "drivers", "name", "metadata", "map", "a", "status", "phase", "size", "w", "data")
	switch g.IntN(11) {
	case 0:
		return "has(" + v + "." + field + ")"
	case 1:
		return v + " == " + g.value(depth-1)
	case 2:
		return v + " != null"
	case 3:
		return g.loop(v, g.pick("exists", "all", "exists_one"), func() string { return g.condition(depth - 1) })
	case 4:
		return quotedCEL(field) + " in " + v
	case 5:
		return "size(" + v + ") > " + g.pick("0", "1")
	case 6:
		return "!(" + g.condition(depth-1) + ")"
	case 7:
		return "(" + g.condition(depth-1) + g.pick(" && ", " || ") + g.condition(depth-1) + ")"
	case 8:
		return v + ".?" + field + ".hasValue()"
	case 9:
		return v + "." + field + " == " + g.pick("'a'", "'x'", "3", "null", "'Running'")
	default:
		k, e := "k"+fmt.Sprint(depth), "e"+fmt.Sprint(depth)
		return v + ".exists(" + k + ", " + e + ", " + g.with(k, func() string {
			return g.with(e, func() string { return g.condition(depth - 1) })
		}) + ")"
	}
}

func (g *generator) with(name string, f func() string) string {
	g.locals = append(g.locals, name)
	defer func() { g.locals = g.locals[:len(g.locals)-1] }()
	return f()
}

func (g *generator) loop(v, macro string, body func() string) string {
	name := "v" + fmt.Sprint(len(g.locals))
	return v + "." + macro + "(" + name + ", " + g.with(name, body) + ")"
}

func quotedCEL(s string) string { return "'" + s + "'" }

// random evaluates a random expression with complete and with reduced objects. It returns the verdict and
// whether the expression uses only a part of an object.
func random(t testing.TB, seed uint64) (policy.Verdict, bool) {
	t.Helper()
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 1))}
	expression := g.condition(2 + g.IntN(4))
	if len(expression) > 8000 {
		return policy.NotMatched, false
	}
	p := parseSpec(t, declared+"variables: [{name: w, expression: resources.w}]\n"+validation("true"))
	p.Spec.Validations[0].Expression = expression
	p.Spec.Validations[0].Message = "false"
	c, err := policy.Compile(p, policy.Options{})
	if err != nil {
		return policy.NotMatched, false
	}
	defer func() {
		if t.Failed() {
			t.Log(expression, fieldsOf(c))
		}
	}()
	verdict := same(t, c, world())
	for _, fields := range fieldsOf(c) {
		if fields != "*" && strings.Contains(fields, ".") {
			return verdict, true
		}
	}
	return verdict, false
}

// The analysis of random expressions is correct: the result does not depend on fields that it omits.
func TestFields_RandomExpressions(t *testing.T) {
	verdicts, parts := map[policy.Verdict]int{}, 0
	for seed := range uint64(500) {
		verdict, part := random(t, seed)
		verdicts[verdict]++
		if part {
			parts++
		}
	}
	assert.Greater(t, verdicts[policy.Allowed], 20, "%v", verdicts)
	assert.Greater(t, verdicts[policy.Rejected], 20, "%v", verdicts)
	assert.Greater(t, parts, 20)
}

func FuzzFields(f *testing.F) {
	f.Add(uint64(1000))
	f.Fuzz(func(t *testing.T, seed uint64) { random(t, seed) })
}
