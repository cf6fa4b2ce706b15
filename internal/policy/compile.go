// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kinds "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// Compile compiles a policy that fulfills the CustomResourceDefinition. The error has a Problem for each mistake.
//
// Problems with the schemas of custom resources are warnings. The policy is in force in any case, as with the type checking of
// ValidatingAdmissionPolicy: the schema of a custom resource can change at any time.
func Compile(p *v1alpha1.BindPolicy, o Options) (*Compiled, error) {
	schemas := o.Schemas
	o.Schemas = nil
	c, err := newCompiler(p, o).compile()
	if err != nil || schemas == nil {
		return c, err
	}
	o.Schemas = schemas
	if _, err := newCompiler(p, o).compile(); err != nil {
		for _, problem := range Problems(err) {
			c.warnings = append(c.warnings, v1alpha1.ExpressionWarning{FieldRef: problem.Field, Warning: problem.Message})
		}
	}
	return c, nil
}

// ErrPreparing is the reason why a policy cannot be evaluated before it is compiled.
var ErrPreparing = errors.New("it is being compiled")

// Broken returns a policy that cannot be evaluated for the reason: one that does not compile, or is not compiled yet (ErrPreparing). It follows its
// failure policy for the binds that matchConstraints select. A selector that is not valid selects all.
func Broken(p *v1alpha1.BindPolicy, reason error) *Compiled {
	out := newCompiler(p, Options{}).out
	out.broken = reason
	return out
}

// compiler compiles one policy.
type compiler struct {
	scope *scope
	// claims means that an expression uses the claims.
	claims   bool
	options  Options
	policy   *v1alpha1.BindPolicy
	out      *Compiled
	problems problems
}

// newCompiler compiles the policy without its expressions.
func newCompiler(p *v1alpha1.BindPolicy, o Options) *compiler {
	c := &compiler{options: o, policy: p, out: &Compiled{
		name: p.Name, uid: p.UID, audit: p.Spec.Mode == v1alpha1.ModeAudit, ignore: p.Spec.FailurePolicy == v1alpha1.FailurePolicyIgnore, needs: len(p.Spec.Tasks),
		resources: map[string]*declared{}, variables: map[string]*expression{},
	}}
	m := &p.Spec.MatchConstraints
	c.out.match = matcher{
		namespaces: c.selector("spec.matchConstraints.namespaceSelector", m.NamespaceSelector),
		pods:       c.selector("spec.matchConstraints.podSelector", m.PodSelector),
		nodes:      c.selector("spec.matchConstraints.nodeSelector", m.NodeSelector),
		schedulers: slices.Clone(m.SchedulerNames),
		daemonSets: m.IncludeDaemonSetPods,
	}
	return c
}

// selector returns nil for a selector that selects everything.
func (c *compiler) selector(field string, s *metav1.LabelSelector) labels.Selector {
	if s == nil {
		return nil
	}
	compiled, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		c.problem(v1alpha1.ReasonCompileError, field, line(err.Error()))
		return nil
	}
	if compiled.Empty() {
		return nil
	}
	return compiled
}

func (c *compiler) problem(reason, field, message string) {
	c.problems = append(c.problems, Problem{Reason: reason, Field: field, Message: message})
}

// expression compiles an expression. It returns nil if the source is empty or has a problem.
func (c *compiler) expression(field, source string, want returns) *expression {
	if source == "" {
		return nil
	}
	checked, text := c.scope.check(source, want)
	var program cel.Program
	if text == "" {
		var err error
		if program, err = programOf(checked); err != nil {
			text = line(err.Error())
		}
	}
	if text != "" {
		c.problem(v1alpha1.ReasonCompileError, field, text)
		return nil
	}
	c.claims = c.claims || mentions(checked, varClaims)
	return &expression{
		field: field, source: source, program: program, output: checked.OutputType(), resources: mentions(checked, varResources),
	}
}

// compile compiles the expressions.
func (c *compiler) compile() (*Compiled, error) {
	spec := &c.policy.Spec
	items := []int{len(spec.Resources), len(spec.Variables), len(spec.MatchConditions), len(spec.Validations), len(spec.WaitFor), len(spec.Tasks)}
	if m := spec.Mutations; m != nil {
		items = append(items, len(m.Annotations), len(m.Labels))
	}
	for _, t := range spec.Tasks {
		items = append(items, len(t.Parameters))
	}
	if n := slices.Max(items); n > maxItems {
		c.problem(v1alpha1.ReasonCompileError, "spec", fmt.Sprintf("a list has %d items; at most %d are allowed", n, maxItems))
		return nil, c.problems
	}
	c.scope = newScope()
	c.declareResources()
	c.compileVariables()
	c.compileNames()
	for i, m := range spec.MatchConditions {
		field := fmt.Sprintf("spec.matchConditions[%d].expression", i)
		c.out.conditions = append(c.out.conditions, rule{path: "spec.matchConditions[" + m.Name + "]", expression: c.expression(field, m.Expression, returnsBool)})
	}
	for i, v := range spec.Validations {
		field := fmt.Sprintf("spec.validations[%d]", i)
		c.out.validations = append(c.out.validations, c.rule(field, field, v.Expression, v.Message, v.MessageExpression))
	}
	for i, w := range spec.WaitFor {
		field := fmt.Sprintf("spec.waitFor[%d]", i)
		r := c.rule("spec.waitFor["+w.Name+"]", field, w.Expression, w.Message, w.MessageExpression)
		r.name, r.timeout, r.allow = w.Name, c.timeout(field+".timeout", w.Timeout), w.OnTimeout == v1alpha1.OnTimeoutAllow
		c.out.waits = append(c.out.waits, r)
	}
	c.compileTasks()
	if m := spec.Mutations; m != nil {
		c.out.annotations = c.mutations("spec.mutations.annotations", m.Annotations)
		c.out.labels = c.mutations("spec.mutations.labels", m.Labels)
	}
	if c.claims {
		c.out.reads = append(c.out.reads, Claims)
	}
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	return c.out, nil
}

// timeout returns the timeout of a wait or task, with a warning if that of the bind is shorter.
func (c *compiler) timeout(field string, t metav1.Duration) time.Duration {
	timeout := cmp.Or(t.Duration, defaultTimeout)
	if limit := c.options.BindTimeout; limit > 0 && timeout > limit {
		c.warn(field, "%s is longer than the timeout of a bind, %s (--prebind-timeout), which ends the wait", timeout, limit)
	}
	return timeout
}

func (c *compiler) warn(field, format string, args ...any) {
	c.out.warnings = append(c.out.warnings, v1alpha1.ExpressionWarning{FieldRef: field, Warning: fmt.Sprintf(format, args...)})
}

// compileTasks compiles the tasks with the expressions of their parameters.
func (c *compiler) compileTasks() {
	for i, t := range c.policy.Spec.Tasks {
		field := fmt.Sprintf("spec.tasks[%d]", i)
		compiled := task{path: "spec.tasks[" + t.Name + "]", Task: Task{
			Policy: c.policy.Name, Name: t.Name, Handler: t.Handler, Timeout: c.timeout(field+".timeout", t.Timeout),
			Allow: t.OnTimeout == v1alpha1.OnTimeoutAllow, Retain: cmp.Or(t.Retain, v1alpha1.RetainWhilePodRuns),
		}}
		for j, p := range t.Parameters {
			compiled.parameters = append(compiled.parameters, mutation{
				path: compiled.path, key: p.Key,
				expression: c.expression(fmt.Sprintf("%s.parameters[%d].valueExpression", field, j), p.ValueExpression, returnsValue),
			})
		}
		for _, w := range c.out.waits {
			if w.allow && w.timeout >= compiled.Timeout {
				c.warn(field+".timeout", "%s is not longer than that of waitFor[%s], and counts from the same call: after that wait, the task has no time", compiled.Timeout, w.name)
			}
		}
		c.out.tasks = append(c.out.tasks, compiled)
	}
}

func (c *compiler) rule(path, field, source, text, message string) rule {
	return rule{
		path: path, text: text,
		expression: c.expression(field+".expression", source, returnsBool),
		message:    c.expression(field+".messageExpression", message, returnsString),
	}
}

// declareResources declares the resources, so that expressions can use them.
func (c *compiler) declareResources() {
	for i := range c.policy.Spec.Resources {
		r := &c.policy.Spec.Resources[i]
		field := fmt.Sprintf("spec.resources[%d]", i)
		gv, err := kinds.ParseGroupVersion(r.APIVersion)
		if err != nil {
			c.problem(v1alpha1.ReasonCompileError, field+".apiVersion", line(err.Error()))
			continue
		}
		d := &declared{Resource: &Resource{
			Name: r.Name, Path: "spec.resources[" + r.Name + "]", Kind: gv.WithKind(r.Kind), Namespace: r.Namespace,
			Labels: c.selector(field+".labelSelector", r.LabelSelector), ByName: r.NameExpression != "", OnNode: r.OnNode,
			ByNamespace: r.NameExpression == "" && r.NamespaceExpression != "", InNamespace: r.Namespace != "" || r.NamespaceExpression != "",
		}}
		object := c.typeOf(d.Kind)
		if problem := scopeProblem(d.Resource); problem != "" {
			c.problem(v1alpha1.ReasonCompileError, field, problem)
		}
		if !d.ByName {
			object = types.NewListType(object)
		}
		c.scope.declare(typeResources, r.Name, object)
		c.out.resources[r.Name] = d
		c.out.reads = append(c.out.reads, d.Resource)
		if r.OnNode {
			if _, text := c.scope.check("resources."+r.Name+"[0].spec.nodeName", returnsAny); text != "" {
				c.problem(v1alpha1.ReasonCompileError, field+".onNode", r.Kind+" has no field spec.nodeName; remove onNode")
			}
		}
	}
}

// scopeProblem returns why the resource never finds an object: it names a namespace, but the kind is cluster-scoped, or it names an
// object of a namespaced kind without a namespace. It is empty if the resource can find one, or if the kind is not built in: then the
// watch fails.
func scopeProblem(r *Resource) string {
	switch {
	case !IsBuiltIn(r.Kind):
	case r.InNamespace && !IsNamespaced(r.Kind):
		return "the kind " + r.Kind.Kind + " is cluster-scoped; remove namespace and namespaceExpression"
	case !r.InNamespace && IsNamespaced(r.Kind) && r.ByName:
		return "the kind " + r.Kind.Kind + " is namespaced; add namespace or namespaceExpression"
	}
	return ""
}

// typeOf returns the type of the objects of a kind. It is dyn for a kind that is not built in and has no schema.
func (c *compiler) typeOf(kind kinds.GroupVersionKind) *types.Type {
	if t := goTypeOf(kind); t != nil {
		return c.scope.structs.of(t)
	}
	if c.options.Schemas == nil {
		return types.DynType
	}
	s, err := c.options.Schemas.ResolveSchema(kind)
	if err != nil {
		return types.DynType
	}
	return c.scope.structs.ofSchema(kind.GroupVersion().String()+"."+kind.Kind, s, true)
}

// compileVariables compiles the variables in order. Each is declared after its own expression.
func (c *compiler) compileVariables() {
	for i, v := range c.policy.Spec.Variables {
		// After a problem, errors in other expressions because of this one would be misleading.
		output := types.DynType
		if x := c.expression(fmt.Sprintf("spec.variables[%d].expression", i), v.Expression, returnsAny); x != nil {
			output = x.output
			c.out.variables[v.Name] = x
		}
		c.scope.declare(typeVariables, v.Name, output)
	}
}

// compileNames compiles the expressions for the names of resources, which cannot use resources. If they use one through a variable, lazy prevents an
// endless recursion.
func (c *compiler) compileNames() {
	for i := range c.policy.Spec.Resources {
		r := &c.policy.Spec.Resources[i]
		d, ok := c.out.resources[r.Name]
		if !ok {
			continue
		}
		field := fmt.Sprintf("spec.resources[%d]", i)
		d.name = c.expression(field+".nameExpression", r.NameExpression, returnsString)
		d.namespace = c.expression(field+".namespaceExpression", r.NamespaceExpression, returnsString)
		if d.name != nil {
			// Without variables, an expression fails, or always returns the same.
			if v, _, err := d.name.program.Eval(cel.NoVars()); err == nil {
				if name, ok := v.Value().(string); ok && len(name) <= validation.DNS1123SubdomainMaxLength {
					d.Constant = name // No object has a longer name.
				}
			}
		}
		for _, x := range []*expression{d.name, d.namespace} {
			if x != nil && x.resources {
				c.problem(v1alpha1.ReasonCompileError, x.field, "cannot use resources")
			}
		}
	}
}

func (c *compiler) mutations(field string, list []v1alpha1.Mutation) []mutation {
	var compiled []mutation
	for i, m := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		key, problem := keyOf(c.policy.Name, m.Key, c.options.KeyPrefixes)
		if problem != nil {
			c.problem(problem.Reason, at+".key", problem.Message)
			continue
		}
		compiled = append(compiled, mutation{path: field + "[" + key + "]", key: key, expression: c.expression(at+".valueExpression", m.ValueExpression, returnsValue)})
	}
	return compiled
}

// mentions returns whether the expression uses the global variable, or a variable of a comprehension with its name.
func mentions(a *cel.Ast, variable string) bool {
	return len(ast.MatchDescendants(ast.NavigateAST(a.NativeRep()), func(e ast.NavigableExpr) bool {
		return e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == variable
	})) > 0
}
