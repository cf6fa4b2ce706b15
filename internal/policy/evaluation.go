// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/component-helpers/storage/ephemeral"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// evaluation is the state of one call of Evaluate. It is the activation of CEL: variables get their value at
// their first use.
type evaluation struct {
	ctx     context.Context //nolint:containedctx // An activation of CEL gets no context. It exists during one call only.
	policy  *Compiled
	subject *Subject
	objects Objects
	result  Result
	cost    uint64
	// rule is the path of the expression that failed.
	rule string
	// size is that of the objects that were read. unread means that a read failed that can succeed later.
	size   int
	unread bool
	values map[string]ref.Val
}

var _ cel.Activation = (*evaluation)(nil)

// Parent implements cel.Activation.
func (e *evaluation) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (e *evaluation) ResolveName(name string) (any, bool) {
	v, ok := e.values[name]
	if !ok {
		if v = e.value(name); v == nil {
			return nil, false
		}
		if e.values == nil {
			e.values = map[string]ref.Val{}
		}
		e.values[name] = v
	}
	return v, true
}

// value returns the value of a variable of the environment, or nil.
func (e *evaluation) value(name string) ref.Val {
	switch name {
	case varPod:
		if e.subject.pod == nil {
			e.subject.pod = limited("pod", e.subject.Pod.DeepCopy())
		}
		return e.subject.pod
	case varNode:
		return common.SchemalessTypedToVal(e.subject.Node)
	case varObject:
		if e.subject.binding == nil {
			e.subject.binding = limited("Binding", e.subject.Binding.DeepCopy())
		}
		return e.subject.binding
	case varRequest:
		u := &e.subject.User
		r := &request{DryRun: e.subject.DryRun, UserInfo: userInfo{Username: u.Username, UID: u.UID, Groups: u.Groups, Extra: u.Extra}}
		fillNil(reflect.ValueOf(r))
		return common.SchemalessTypedToVal(r)
	case varNamespace:
		ns, err := e.namespace()
		return valueOf(ns, err)
	case varClaims:
		claims, err := e.claims()
		return valueOf(claims, err)
	case varResources:
		return newLazy(typeResources, e.resource)
	case varVariables:
		return newLazy(typeVariables, e.variable)
	}
	return nil
}

// limited returns the value of a copy of an object, unless it is too large.
func limited(name string, o client.Object) ref.Val {
	if o = Reduce(o); isLarge(o) {
		return types.WrapErr(limit("the %s is larger than %d KiB", name, MaxObject>>10))
	}
	return common.SchemalessTypedToVal(o)
}

// errBudget means that the expressions of a policy cost too much together.
var errBudget = errors.New("the expressions of the policy exceed the cost limit per bind")

// eval evaluates an expression.
func (e *evaluation) eval(x *expression) (ref.Val, error) {
	if err := e.over(); err != nil {
		return nil, err
	}
	v, details, err := x.program.ContextEval(e.ctx, e)
	if cost := details.ActualCost(); cost != nil {
		e.cost += *cost
	}
	if err != nil {
		return nil, e.explain(x, err)
	}
	// An expression can hide that it was interrupted.
	return v, e.over()
}

// explain adds the resources that do not exist to the error of an expression that reads a field of null.
func (e *evaluation) explain(x *expression, err error) error {
	resources, ok := e.values[varResources].(*lazy)
	if !ok || !x.resources || !strings.HasPrefix(err.Error(), "no such key: ") {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(resources.values)) {
		if resources.values[name] == types.NullValue {
			err = fmt.Errorf("%w; resources.%s is null", err, name)
		}
	}
	return err
}

// over returns an error if nothing can be evaluated any more.
func (e *evaluation) over() error {
	if err := e.ctx.Err(); err != nil {
		return err
	}
	if e.cost > policyCostLimit {
		return errBudget
	}
	return nil
}

// read reads objects within the limits of the policy.
func (e *evaluation) read(r *Resource, namespace, name string) ([]client.Object, error) {
	list, err := e.objects.Read(e.ctx, r, namespace, name)
	if e.size += list.size; err == nil && e.size > maxSize {
		err = limit("the policy reads more than %d MiB of objects; restrict it with namespace, namespaceExpression, labelSelector or onNode", maxSize>>20)
	}
	if err != nil {
		return nil, e.failed(fmt.Errorf("%s: %w", r.Path, err))
	}
	return list.Objects, nil
}

// failed notes that a read failed.
func (e *evaluation) failed(err error) error {
	e.unread = e.unread || !errors.As(err, new(*LimitError))
	return err
}

// namespace returns the Namespace of the pod. It exists, so the cache is behind if it lacks it.
func (e *evaluation) namespace() (*corev1.Namespace, error) {
	name := e.subject.Pod.Namespace
	found, err := e.read(Namespace, "", name)
	if err != nil {
		return nil, err
	}
	for _, o := range found {
		if ns, ok := o.(*corev1.Namespace); ok {
			return ns, nil
		}
	}
	return nil, e.failed(fmt.Errorf("the cache does not contain Namespace %s yet", name))
}

// claims returns the claims of the pod by the names of the volumes. A missing claim is nil, and so is one that has the name of a generic ephemeral
// volume and does not belong to the pod.
func (e *evaluation) claims() (map[string]*corev1.PersistentVolumeClaim, error) {
	pod, claims := e.subject.Pod, map[string]*corev1.PersistentVolumeClaim{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(pod, v)
		default:
			continue
		}
		found, err := e.read(Claims, pod.Namespace, name)
		if err != nil {
			return nil, err
		}
		claims[v.Name] = nil
		for _, o := range found {
			if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && (v.Ephemeral == nil || ephemeral.VolumeIsForPod(pod, claim) == nil) {
				claims[v.Name] = claim
			}
		}
	}
	return claims, nil
}

// variable returns the value of a variable of the policy. It is nil if there is none with the name.
func (e *evaluation) variable(name string) ref.Val {
	x, ok := e.policy.variables[name]
	if !ok {
		return nil
	}
	v, err := e.eval(x)
	if err != nil {
		return types.WrapErr(fmt.Errorf("%s: %w", x.field, err))
	}
	return v
}

// resource returns the value of a resource. It is nil if there is none with the name.
func (e *evaluation) resource(resource string) ref.Val {
	d, ok := e.policy.resources[resource]
	if !ok {
		return nil
	}
	namespace, name := d.Namespace, ""
	for _, from := range []struct {
		x    *expression
		text *string
	}{{d.name, &name}, {d.namespace, &namespace}} {
		if from.x == nil {
			continue
		}
		text, err := evalAs[types.String](e, from.x)
		if err != nil {
			return types.WrapErr(fmt.Errorf("%s: %w", from.x.field, err))
		}
		switch {
		case text == "" && d.ByName:
			return types.NullValue
		case text == "":
			return types.NewRefValList(types.DefaultTypeAdapter, nil)
		}
		*from.text = string(text)
	}
	objects, err := e.read(d.Resource, namespace, name)
	if err != nil {
		return types.WrapErr(err)
	}
	values := make([]ref.Val, len(objects))
	for i, o := range objects {
		values[i] = valueOf(o, nil)
	}
	switch {
	case !d.ByName:
		return types.NewRefValList(types.DefaultTypeAdapter, values)
	case len(values) == 0:
		return types.NullValue
	}
	return values[0]
}

// valueOf returns the CEL value of a Go value. Custom resources are unstructured.
func valueOf(v any, err error) ref.Val {
	if err != nil {
		return types.WrapErr(err)
	}
	if u, ok := v.(*unstructured.Unstructured); ok {
		return types.DefaultTypeAdapter.NativeToValue(u.Object)
	}
	return common.SchemalessTypedToVal(v)
}

// lazy is an object whose fields get their value at their first use. Expressions can only select its fields, so the rest of ref.Val is that of
// its type.
type lazy struct {
	ref.Val
	of *types.Type
	// get returns nil if there is no such field.
	get    func(name string) ref.Val
	values map[string]ref.Val
}

func newLazy(of *types.Type, get func(name string) ref.Val) *lazy {
	return &lazy{Val: of, of: of, get: get, values: map[string]ref.Val{}}
}

var _ traits.Indexer = (*lazy)(nil)
var _ traits.FieldTester = (*lazy)(nil)

// Get implements traits.Indexer.
func (l *lazy) Get(key ref.Val) ref.Val {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key)
	}
	v, ok := l.values[string(name)]
	if !ok {
		l.values[string(name)] = types.NewErr("%s depends on itself", name)
		if v = l.get(string(name)); v == nil {
			v = types.NewErr("no such key: %v", key)
		}
		l.values[string(name)] = v
	}
	return v
}

// IsSet implements traits.FieldTester. A missing object is not set.
func (l *lazy) IsSet(key ref.Val) ref.Val {
	v := l.Get(key)
	if types.IsUnknownOrError(v) {
		return v
	}
	return types.Bool(v != types.NullValue)
}

// Type implements ref.Val.
func (l *lazy) Type() ref.Type { return l.of }
