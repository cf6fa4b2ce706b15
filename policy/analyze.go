// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// analysis finds which resources, and which fields of objects, expressions use. It follows values from variables
// through selections, indexes, comprehensions and optional values to where they are used. If it does not know a
// function, the function uses the complete value.
type analysis struct {
	// variables and resources are those of the policy, by name.
	variables map[string]*expression
	resources map[string]*declared

	// namespace and claims are nil if they are not used.
	namespace, claims *node
	// used are the used resources.
	used map[string]*node
	// of are the values of the used variables. nil while the value is being computed.
	of map[string]*origin
	// depth is the number of comprehensions whose loop contains the expression.
	depth int
}

// origin describes which fields a value can come from.
type origin struct {
	// nodes are the fields that can be the value.
	nodes []*node
	// elems is the origin of the elements of a list, map or optional value that the expression created.
	elems *origin
}

// scope contains the variables of comprehensions.
type scope struct {
	parent *scope
	name   string
	value  *origin
}

func (s *scope) with(name string, value *origin) *scope {
	return &scope{parent: s, name: name, value: value}
}

func (s *scope) find(name string) (*origin, bool) {
	for ; s != nil; s = s.parent {
		if s.name == name {
			return s.value, true
		}
	}
	return nil, false
}

// join returns the origins of a value that is one of both.
func (o *origin) join(p *origin) *origin {
	switch {
	case o == nil:
		return p
	case p == nil || o == p:
		return o
	}
	j := &origin{nodes: slices.Clone(o.nodes), elems: o.elems.join(p.elems)}
	for _, n := range p.nodes {
		if !slices.Contains(j.nodes, n) {
			j.nodes = append(j.nodes, n)
		}
	}
	return j
}

// use marks the complete value as used.
func (o *origin) use() {
	for ; o != nil; o = o.elems {
		for _, n := range o.nodes {
			n.all = true
		}
	}
}

func (o *origin) child(name string) *origin {
	if o == nil {
		return nil
	}
	c := &origin{}
	for _, n := range o.nodes {
		c.nodes = append(c.nodes, n.child(name))
	}
	return c.join(o.elems)
}

func (o *origin) element() *origin {
	if o == nil {
		return nil
	}
	c := &origin{}
	for _, n := range o.nodes {
		c.nodes = append(c.nodes, n.element())
	}
	return c.join(o.elems)
}

// expression marks all fields that the expression uses.
func (a *analysis) expression(x *expression) {
	if x != nil {
		a.value(x).use()
	}
}

// value returns the origin of the value of the expression.
func (a *analysis) value(x *expression) *origin {
	v := visitor{analysis: a, types: x.ast.NativeRep()}
	return v.visit(x.ast.NativeRep().Expr(), nil)
}

// resource returns the origin of a resource and marks it as used.
func (a *analysis) resource(name string) *origin {
	d, ok := a.resources[name]
	if !ok {
		return nil
	}
	n, ok := a.used[name]
	if !ok {
		n = &node{}
		a.used[name] = n
		a.expression(d.name)
		a.expression(d.namespace)
	}
	return &origin{nodes: []*node{n}}
}

func (a *analysis) variable(name string) *origin {
	x, ok := a.variables[name]
	if !ok {
		return nil
	}
	o, ok := a.of[name]
	if !ok {
		a.of[name] = nil
		o = a.value(x)
		a.of[name] = o
	}
	return o
}

// visitor visits one expression.
type visitor struct {
	*analysis
	types *ast.AST
}

// scalar returns whether the type has no fields.
func scalar(t *types.Type) bool {
	switch t.Kind() {
	case types.BoolKind, types.BytesKind, types.DoubleKind, types.DurationKind, types.IntKind, types.StringKind,
		types.TimestampKind, types.UintKind, types.NullTypeKind:
		return true
	default:
		return false
	}
}

func (v visitor) visit(e ast.Expr, s *scope) *origin {
	switch e.Kind() {
	case ast.IdentKind:
		return v.ident(e.AsIdent(), s)
	case ast.SelectKind:
		return v.selected(e, e.AsSelect().Operand(), e.AsSelect().FieldName(), s)
	case ast.CallKind:
		return v.call(e, s)
	case ast.ListKind:
		o := &origin{}
		for _, elem := range e.AsList().Elements() {
			o.elems = o.elems.join(v.visit(elem, s))
		}
		return o
	case ast.MapKind:
		o := &origin{}
		for _, entry := range e.AsMap().Entries() {
			v.visit(entry.AsMapEntry().Key(), s).use()
			o.elems = o.elems.join(v.visit(entry.AsMapEntry().Value(), s))
		}
		return o
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			v.visit(field.AsStructField().Value(), s).use()
		}
		return nil
	case ast.ComprehensionKind:
		return v.comprehension(e.AsComprehension(), s)
	default:
		return nil
	}
}

func (v visitor) ident(name string, s *scope) *origin {
	// A variable of a comprehension can have the name of a global one, and .resources is the global one. The
	// expression may use either.
	local, _ := s.find(name)
	return local.join(v.global(strings.TrimPrefix(name, ".")))
}

func (v visitor) global(name string) *origin {
	switch name {
	case varNamespace:
		if v.namespace == nil {
			v.namespace = &node{}
		}
		return &origin{nodes: []*node{v.namespace}}
	case varClaims:
		if v.claims == nil {
			v.claims = &node{}
		}
		return &origin{nodes: []*node{v.claims}}
	case varResources:
		// The expression uses the resources as a whole.
		o := &origin{}
		for name := range v.resources {
			o = o.join(v.resource(name))
		}
		return &origin{elems: o}
	case varVariables:
		o := &origin{}
		for name := range v.variables {
			o = o.join(v.variable(name))
		}
		return &origin{elems: o}
	default:
		return nil
	}
}

// selected returns the origin of a field.
func (v visitor) selected(e, operand ast.Expr, name string, s *scope) *origin {
	var o *origin
	switch v.root(operand, s) {
	case varResources:
		o = v.resource(name)
	case varVariables:
		o = v.variable(name)
	default:
		o = v.visit(operand, s).child(name)
	}
	if e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly() {
		return nil
	}
	return v.scalars(e, o)
}

// scalars marks a value without fields as used, because its presence is the value.
func (v visitor) scalars(e ast.Expr, o *origin) *origin {
	t := v.types.GetType(e.ID())
	if scalar(inner(t)) {
		o.use()
		return nil
	}
	return o
}

// root returns the name of the global variable that the expression is, if it is one.
func (v visitor) root(e ast.Expr, s *scope) string {
	if e.Kind() != ast.IdentKind {
		return ""
	}
	if _, ok := s.find(e.AsIdent()); ok {
		return ""
	}
	return strings.TrimPrefix(e.AsIdent(), ".")
}

func (v visitor) call(e ast.Expr, s *scope) *origin {
	c := e.AsCall()
	args := c.Args()
	switch c.FunctionName() {
	case operators.Conditional:
		v.visit(args[0], s).use()
		return v.visit(args[1], s).join(v.visit(args[2], s))
	case operators.Index, operators.OptIndex, operators.OptSelect:
		if name, ok := text(args[1]); ok {
			return v.selected(e, args[0], name, s)
		}
		v.visit(args[1], s).use()
		return v.scalars(e, v.visit(args[0], s).element())
	case operators.Equals, operators.NotEquals:
		left, right := v.visit(args[0], s), v.visit(args[1], s)
		if !null(args[0]) && !null(args[1]) {
			left.use()
			right.use()
		}
		return nil
	case operators.In:
		return v.in(args[0], args[1], s)
	case operators.Add:
		if t := v.types.GetType(e.ID()); t.Kind() == types.ListKind {
			return v.visit(args[0], s).join(v.visit(args[1], s))
		}
	case "size":
		if c.IsMemberFunction() {
			args = []ast.Expr{c.Target()}
		}
		if len(args) == 1 {
			v.visit(args[0], s).element()
			return nil
		}
	case "dyn", "optional.of":
		if len(args) == 1 {
			return v.visit(args[0], s)
		}
	case "hasValue", "value", "or", "orValue":
		if c.IsMemberFunction() && isOptional(v.types.GetType(c.Target().ID())) {
			o := v.visit(c.Target(), s)
			for _, arg := range args {
				o = o.join(v.visit(arg, s))
			}
			if c.FunctionName() == "hasValue" {
				return nil
			}
			return o
		}
	}
	if c.IsMemberFunction() {
		v.visit(c.Target(), s).use()
	}
	for _, arg := range args {
		v.visit(arg, s).use()
	}
	return nil
}

// in analyzes the operator in, which looks for a key of a map or for an element of a list.
func (v visitor) in(elem, container ast.Expr, s *scope) *origin {
	if v.types.GetType(container.ID()).Kind() == types.MapKind {
		if name, ok := text(elem); ok {
			v.visit(container, s).child(name)
			return nil
		}
		v.visit(elem, s).use()
		v.visit(container, s).element()
		return nil
	}
	v.visit(elem, s).use()
	v.visit(container, s).use()
	return nil
}

// maxDepth limits the number of nested loops that are followed in detail.
const maxDepth = 4

func (v visitor) comprehension(c ast.ComprehensionExpr, s *scope) *origin {
	over := v.visit(c.IterRange(), s)
	elem := over.element()
	inner := s
	switch kind := v.types.GetType(c.IterRange().ID()).Kind(); {
	case c.HasIterVar2():
		inner = inner.with(c.IterVar(), nil).with(c.IterVar2(), elem)
	case kind == types.MapKind:
		inner = inner.with(c.IterVar(), nil)
	default:
		inner = inner.with(c.IterVar(), elem)
	}
	accu := v.visit(c.AccuInit(), s)
	step := func() *origin {
		v.depth++
		defer func() { v.depth-- }()
		with := inner.with(c.AccuVar(), accu)
		v.visit(c.LoopCondition(), with).use()
		return accu.join(v.visit(c.LoopStep(), with))
	}
	accu = step()
	switch {
	case accu == nil || len(accu.nodes) == 0 && accu.elems == nil:
	case v.depth >= maxDepth:
		accu.use()
	default:
		// The next step of the loop uses the result of this one.
		accu = step()
	}
	return v.visit(c.Result(), s.with(c.AccuVar(), accu))
}

// text returns the value of a string literal.
func text(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}

func null(e ast.Expr) bool { return e.Kind() == ast.LiteralKind && e.AsLiteral() == types.NullValue }
