// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// The variables of expressions.
const (
	varObject    = "object"
	varPod       = "pod"
	varNode      = "node"
	varNamespace = "namespaceObject"
	varRequest   = "request"
	varClaims    = "claims"
	varResources = "resources"
	varVariables = "variables"
)

// The limits of the cost of an expression, and of all expressions of a policy for a bind. They are a tenth of the
// API server's.
const (
	expressionCostLimit = celconfig.PerCallLimit / 10
	policyCostLimit     = celconfig.RuntimeCELCostBudget / 10
)

// The limits of expressions, also for policies that do not come from the API server, with its limits of the CustomResourceDefinition: anyone who
// can connect to the webhook can post one.
const (
	// maxSource is the length of an expression, and maxItems that of a list of rules.
	maxSource, maxItems = 8_192, 64
	// maxNodes is the limit of the nodes of an expression. Nested macros multiply them, and the time to check their types is quadratic.
	maxNodes = 5_000
	// maxPolicyNodes is the limit of the nodes of all expressions of a policy.
	maxPolicyNodes = 20_000
)

// request is the variable of the same name. Its fields are always present.
type request struct {
	UserInfo userInfo `json:"userInfo"`
	DryRun   bool     `json:"dryRun"`
}

type userInfo struct {
	Username string                                 `json:"username"`
	UID      string                                 `json:"uid"`
	Groups   []string                               `json:"groups"`
	Extra    map[string]authenticationv1.ExtraValue `json:"extra"`
}

// The types of the variables that differ between policies.
var (
	typeResources = types.NewObjectType("policy/resources")
	typeVariables = types.NewObjectType("policy/variables")
)

// base is what all policies share: the environment, the types of its variables, and the limits of its functions.
type base struct {
	*cel.Env
	structs structs
	limits  cel.ProgramOption
}

// newBase panics if the library lacks a function. Tests compile policies, so they find that.
var newBase = sync.OnceValue(func() *base {
	all := structs{}
	// The functions are those of the version of Kubernetes that Prebind is built with, for all API servers.
	env, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).StoredExpressionsEnv().Extend(
		cel.Variable(varObject, all.of(reflect.TypeFor[corev1.Binding]())),
		cel.Variable(varPod, all.of(reflect.TypeFor[corev1.Pod]())),
		cel.Variable(varNode, all.of(reflect.TypeFor[corev1.Node]())),
		cel.Variable(varNamespace, all.of(reflect.TypeFor[corev1.Namespace]())),
		cel.Variable(varRequest, all.of(reflect.TypeFor[request]())),
		cel.Variable(varClaims, all.of(reflect.TypeFor[map[string]*corev1.PersistentVolumeClaim]())),
		cel.Variable(varResources, typeResources),
		cel.Variable(varVariables, typeVariables),
		cel.ParserExpressionSizeLimit(maxSource),
	)
	utilruntime.Must(err)
	return &base{Env: env, structs: all, limits: cel.CustomDecoratorV2(bounded(implementations(env)))}
})

// scope is the environment of a policy's expressions. It knows their types. It changes only while the policy is being compiled.
type scope struct {
	types.Provider
	env     *cel.Env
	structs structs
	// nodes are those of the expressions that have been parsed.
	nodes int
}

func newScope() *scope {
	base := newBase()
	s := &scope{Provider: base.CELTypeProvider(), structs: maps.Clone(base.structs)}
	s.structs[typeResources.TypeName()], s.structs[typeVariables.TypeName()] = map[string]*types.Type{}, map[string]*types.Type{}
	var err error
	s.env, err = base.Extend(cel.CustomTypeProvider(s))
	utilruntime.Must(err)
	return s
}

// declare adds a field of a struct type.
func (sc *scope) declare(of *types.Type, field string, t *types.Type) {
	sc.structs[of.TypeName()][field] = t
}

// FindStructType implements types.Provider.
func (sc *scope) FindStructType(name string) (*types.Type, bool) {
	if _, ok := sc.structs[name]; ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return sc.Provider.FindStructType(name)
}

// FindStructFieldType implements types.Provider.
func (sc *scope) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if fields, ok := sc.structs[name]; ok {
		t, ok := fields[field]
		return &types.FieldType{Type: t}, ok
	}
	return sc.Provider.FindStructFieldType(name, field)
}

// returns are the types of the results of an expression, with their names. None means any.
type returns struct {
	names string
	types []*types.Type
}

var (
	returnsBool   = returns{"bool", []*types.Type{types.BoolType}}
	returnsString = returns{"string", []*types.Type{types.StringType}}
	returnsValue  = returns{"string, null or optional string", []*types.Type{
		types.StringType, types.NewNullableType(types.StringType), types.NullType, types.NewOptionalType(types.StringType),
		types.NewOptionalType(types.NewNullableType(types.StringType)), types.NewOptionalType(types.DynType),
	}}
	returnsAny = returns{}
)

// check returns a text if the type does not fit. A dyn type is checked at runtime.
func (r returns) check(t *types.Type) string {
	if len(r.types) == 0 || t.Kind() == types.DynKind || slices.ContainsFunc(r.types, t.IsExactType) {
		return ""
	}
	return fmt.Sprintf("must return %s, but returns %s", r.names, t)
}

// expression is a compiled expression.
type expression struct {
	// field is its path in the policy.
	field   string
	source  string
	program cel.Program
	// output is the type of its results.
	output *types.Type
	// resources means that it uses resources itself.
	resources bool
}

// check parses an expression and checks its type. The text is the problem, or empty.
func (sc *scope) check(source string, want returns) (ast *cel.Ast, text string) {
	if sc.nodes > maxPolicyNodes {
		return nil, fmt.Sprintf("the expressions of the policy have more than %d nodes after their macros are expanded; split the policy", maxPolicyNodes)
	}
	sc.nodes++ // Also for an expression that cannot be parsed.
	ast, issues := sc.env.Parse(source)
	if issues.Err() != nil {
		return nil, textOf(issues)
	}
	nodes := celast.NodeCount(ast.NativeRep())
	sc.nodes += nodes
	if nodes > maxNodes {
		return nil, fmt.Sprintf("the expression has %d nodes after its macros are expanded; at most %d are allowed: nest fewer macros, such as optMap", nodes, maxNodes)
	}
	ast, issues = sc.env.Check(ast)
	if issues.Err() != nil {
		return nil, textOf(issues)
	}
	return ast, want.check(ast.OutputType())
}

// textOf returns the issues as one line.
func textOf(issues *cel.Issues) string {
	var texts []string
	for _, e := range issues.Errors() {
		text := strings.ReplaceAll(e.Message, " (in container '')", "")
		if e.Location.Line() > 0 {
			text = fmt.Sprintf("line %d, column %d: %s", e.Location.Line(), e.Location.Column()+1, text)
		}
		texts = append(texts, text)
	}
	return line(strings.Join(texts, "; "))
}

// programOf makes a checked expression executable. Programs of all policies share an environment, because each keeps
// its own in memory. They need only the types in the checked expression.
func programOf(ast *cel.Ast) (cel.Program, error) {
	base := newBase()
	return base.Program(ast,
		base.limits,
		cel.CostTracking(&costs{}),
		cel.CostLimit(expressionCostLimit),
		cel.InterruptCheckFrequency(celconfig.CheckFrequency),
	)
}
