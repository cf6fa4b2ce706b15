// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/policy/schema"
)

// evaluation is the state of one call of Evaluate. It is the activation of CEL: variables get their value at
// their first use.
type evaluation struct {
	ctx     context.Context //nolint:containedctx // An activation of CEL gets no context. It lives as long as one call.
	policy  *Compiled
	subject *Subject
	objects Objects
	result  Result
	cost    uint64
	watch   stopwatch
	// err is that of the context. It ends the evaluation.
	err error
	// unread is the error of a read that can succeed later.
	unread error

	pod, node, object, request ref.Val
	namespace, claims          ref.Val
	read                       bool
	ns                         *corev1.Namespace
	resources, variables       *lazy
}

var _ cel.Activation = (*evaluation)(nil)

func newEvaluation(ctx context.Context, c *Compiled, s *Subject, o Objects) *evaluation {
	return &evaluation{ctx: ctx, policy: c, subject: s, objects: o, result: Result{Policy: c.name, Audit: c.audit, Verdict: NotMatched}}
}

// Parent implements cel.Activation.
func (e *evaluation) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (e *evaluation) ResolveName(name string) (any, bool) {
	switch name {
	case varPod:
		if e.pod == nil {
			e.pod = limited(typePod, "pod", e.subject.Pod)
		}
		return e.pod, true
	case varNode:
		if e.node == nil {
			e.node = typeNode.Value(e.subject.Node)
		}
		return e.node, true
	case varObject:
		if e.object == nil {
			e.object = limited(typeObject, "Binding", e.subject.Binding)
		}
		return e.object, true
	case varRequest:
		if e.request == nil {
			u := &e.subject.User
			e.request = typeRequest.Value(&request{DryRun: e.subject.DryRun, UserInfo: userInfo{
				Username: u.Username, UID: u.UID, Groups: u.Groups, Extra: u.Extra,
			}})
		}
		return e.request, true
	case varNamespace:
		return e.namespaceValue(), true
	case varClaims:
		return e.claimsValue(), true
	case varResources:
		if e.resources == nil {
			e.resources = newLazy(typeResources, e.policy.resourceIndex, e.resource)
		}
		return e.resources, true
	case varVariables:
		if e.variables == nil {
			e.variables = newLazy(typeVariables, e.policy.variableIndex, e.variable)
		}
		return e.variables, true
	}
	return nil, false
}

// errBudget means that the expressions of a policy cost too much together.
var errBudget = errors.New("the expressions of the policy exceed the cost limit per bind")

// stopwatch limits the time of the expressions of an evaluation. It does not run during reads: those from the API server may
// take long, and the caller's context limits them.
type stopwatch struct {
	clock clock.WithDelayedExecution
	// ctx is the context of expressions. It ends with the caller's, or with the cause exceeded.
	ctx      context.Context //nolint:containedctx // It lives as long as the evaluation.
	cancel   context.CancelCauseFunc
	exceeded error
	timer    clock.Timer
	// left is the time that was left at the last start.
	left  time.Duration
	start time.Time
}

// begin starts the watch at its first call.
func (w *stopwatch) begin(ctx context.Context, clock clock.WithDelayedExecution, limit time.Duration) {
	if w.ctx != nil {
		return
	}
	w.exceeded = fmt.Errorf("the expressions of the policy took longer than %s", limit)
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.clock, w.left, w.start = clock, limit, clock.Now()
	w.timer = clock.AfterFunc(limit, func() { w.cancel(w.exceeded) })
}

// end releases the watch.
func (w *stopwatch) end() {
	if w.ctx != nil {
		w.timer.Stop()
		w.cancel(nil)
	}
}

// over returns whether the time is over. It is false if the caller's context ended before.
func (w *stopwatch) over() bool {
	if w.left-w.clock.Since(w.start) <= 0 {
		w.cancel(w.exceeded)
	}
	return context.Cause(w.ctx) == w.exceeded //nolint:errorlint // The cause is this error itself.
}

// read reads objects with the caller's context while the watch stands still.
func read[T any](e *evaluation, objects func(context.Context) (T, error)) (T, error) {
	w := &e.watch
	w.timer.Stop()
	w.left -= w.clock.Since(w.start)
	defer func() {
		w.start = w.clock.Now()
		if !w.over() {
			w.timer.Reset(w.left)
		}
	}()
	return objects(e.ctx)
}

// eval evaluates an expression. The error of the context is also in e.err.
func (e *evaluation) eval(x *expression) (ref.Val, error) {
	e.watch.begin(e.ctx, e.policy.clock, e.policy.timeLimit)
	switch {
	case e.err != nil:
		return nil, e.err
	case e.watch.over():
		return nil, e.watch.exceeded
	case e.ctx.Err() != nil:
		return nil, e.stop(e.ctx.Err())
	case e.cost > policyCostLimit:
		return nil, errBudget
	}
	v, details, err := x.program.ContextEval(e.watch.ctx, e)
	if cost := details.ActualCost(); cost != nil {
		e.cost += *cost
	}
	switch {
	case e.err != nil:
		return nil, e.err
	case e.watch.over():
		return nil, e.watch.exceeded
	case err != nil && e.ctx.Err() != nil:
		return nil, e.stop(e.ctx.Err())
	case err != nil:
		return nil, err
	case e.cost > policyCostLimit:
		return nil, errBudget
	}
	return v, nil
}

// stop ends the evaluation with an error that is not one of the policy.
func (e *evaluation) stop(err error) error {
	if e.err == nil {
		e.err = err
	}
	return e.err
}

// limited returns the value of an object that is not too large.
func limited[T interface {
	comparable
	Size() int
}](of *schema.Type, name string, o T) ref.Val {
	var none T
	if o != none && o.Size() > MaxObject {
		return types.WrapErr(&LimitError{Message: fmt.Sprintf("the %s is larger than %d KiB", name, MaxObject>>10)})
	}
	return of.Value(o)
}

// failed returns the error of a read as a value.
func (e *evaluation) failed(err error) ref.Val {
	if e.ctx.Err() != nil {
		return types.WrapErr(e.stop(err))
	}
	err = readError(err)
	if errors.As(err, new(*PendingError)) {
		e.unread = err
	}
	return types.WrapErr(err)
}

func (e *evaluation) namespaceValue() ref.Val {
	if e.namespace == nil {
		if !e.read {
			ns, err := read(e, e.objects.Namespace)
			if err != nil {
				return e.failed(err)
			}
			e.ns, e.read = ns, true
		}
		e.namespace = typeNamespace.Value(e.ns)
	}
	return e.namespace
}

func (e *evaluation) claimsValue() ref.Val {
	if e.claims == nil {
		claims, err := read(e, e.objects.Claims)
		if err != nil {
			return e.failed(err)
		}
		e.claims = typeClaims.Value(claims)
	}
	return e.claims
}

// variable returns the value of a variable.
func (e *evaluation) variable(i int) ref.Val {
	v, err := e.eval(e.policy.variables[i])
	if err != nil {
		return types.WrapErr(fmt.Errorf("%s: %w", e.policy.variables[i].field, err))
	}
	return v
}

// resource returns the value of a resource.
func (e *evaluation) resource(i int) ref.Val {
	d := e.policy.resources[i]
	namespace, name := d.Namespace, ""
	if d.ByName {
		var err error
		if name, err = e.text(d.name); err != nil {
			return types.WrapErr(fmt.Errorf("%s: %w", d.name.field, err))
		}
		if d.namespace != nil {
			if namespace, err = e.text(d.namespace); err != nil {
				return types.WrapErr(fmt.Errorf("%s: %w", d.namespace.field, err))
			}
		}
		if name == "" || d.namespace != nil && namespace == "" {
			return types.NullValue
		}
	}
	objects, err := read(e, func(ctx context.Context) ([]client.Object, error) {
		return e.objects.Resource(ctx, d.Resource, namespace, name)
	})
	if err != nil {
		return e.failed(err)
	}
	values := make([]ref.Val, 0, len(objects))
	for _, o := range objects {
		v, err := d.value(o)
		if err != nil {
			return types.WrapErr(err)
		}
		values = append(values, v)
	}
	if !d.ByName {
		return types.NewRefValList(schema.Adapter{}, values)
	}
	if len(values) == 0 {
		return types.NullValue
	}
	return values[0]
}

// value returns the CEL value of an object of the resource.
func (d *declared) value(o client.Object) (ref.Val, error) {
	if o == nil || reflect.ValueOf(o).IsNil() {
		return types.NullValue, nil
	}
	u, ok := o.(*unstructured.Unstructured)
	switch {
	case d.typed == nil && ok:
		return schema.Adapter{}.NativeToValue(u.Object), nil
	case d.typed == nil:
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		return schema.Adapter{}.NativeToValue(content), err
	case ok:
		typed := d.typed.New()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed); err != nil {
			return nil, fmt.Errorf("resource %s: %w", d.Resource.Name, err)
		}
		return d.typed.Value(typed), nil
	}
	v := d.typed.Value(o)
	if err, failed := v.(*types.Err); failed {
		return nil, fmt.Errorf("resource %s: %w", d.Resource.Name, err)
	}
	return v, nil
}

// lazy is an object whose fields get their value at their first use.
type lazy struct {
	of     *types.Type
	index  map[string]int
	get    func(i int) ref.Val
	values []ref.Val
}

var _ traits.Indexer = (*lazy)(nil)
var _ traits.FieldTester = (*lazy)(nil)

func newLazy(of *types.Type, index map[string]int, get func(i int) ref.Val) *lazy {
	return &lazy{of: of, index: index, get: get, values: make([]ref.Val, len(index))}
}

// Get implements traits.Indexer.
func (l *lazy) Get(key ref.Val) ref.Val {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key)
	}
	i, ok := l.index[string(name)]
	if !ok {
		return types.NewErr("no such key: %v", key)
	}
	if l.values[i] == nil {
		l.values[i] = l.get(i)
	}
	return l.values[i]
}

// IsSet implements traits.FieldTester. A missing object is not set.
func (l *lazy) IsSet(key ref.Val) ref.Val {
	v := l.Get(key)
	if types.IsUnknownOrError(v) {
		return v
	}
	return types.Bool(v != types.NullValue)
}

// ConvertToNative implements ref.Val.
func (l *lazy) ConvertToNative(to reflect.Type) (any, error) {
	return nil, fmt.Errorf("type conversion error from %s to %v", l.of.TypeName(), to)
}

// ConvertToType implements ref.Val.
func (l *lazy) ConvertToType(to ref.Type) ref.Val {
	if to == types.TypeType {
		return l.of
	}
	return types.NewErr("type conversion error from %s to %s", l.of.TypeName(), to.TypeName())
}

// Equal implements ref.Val.
func (l *lazy) Equal(other ref.Val) ref.Val {
	o, ok := other.(*lazy)
	return types.Bool(ok && o == l)
}

// Type implements ref.Val.
func (l *lazy) Type() ref.Type { return l.of }

// Value implements ref.Val.
func (l *lazy) Value() any { return l }
