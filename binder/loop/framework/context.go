// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
)

// Object identifies the object of an error or a wait.
type Object = framework.Object

// Device is one device, or a share of one, that a pod gets.
type Device = framework.Device

// Finding is the result of one rule of a plugin, such as a policy.
type Finding = framework.Finding

// Error is an error that the client receives.
type Error = framework.Error

// Parameter is an annotation that a plugin reads.
type Parameter = framework.Parameter

// Source says which objects may have the parameters of a plugin.
type Source = framework.Source

// BindContext is the bind as a plugin sees it. The engine creates one for each plugin and pass.
// It is not safe for concurrent use. Plugins change only the extension.
type BindContext struct {
	// Pod and Node are those of the cache, as of this pass; the engine has checked that the pod can
	// be bound. They are shared: do not change them. The node has neither images nor managed
	// fields.
	Pod  *corev1.Pod
	Node *corev1.Node
	// Binding is the object that this call's client posted, and User is that client.
	Binding *corev1.Binding
	User    authenticationv1.UserInfo
	// Attempt identifies the work on this bind in this replica. Plugins include it in their
	// writes. A bound pod has it in the annotation AttemptAnnotation.
	Attempt string
	// Now is the time of the pass. PreFlight uses it instead of a clock. Since is the time of the
	// first call for this bind that this replica received.
	Now, Since time.Time
	// Written means that PreBind of this plugin has succeeded for this attempt. So a write that is
	// missing was undone by somebody else, or is not in the cache yet.
	Written bool
	// DryRun means that nothing may be written.
	DryRun bool
	// Recovered means that the context was created from a Mark. Then Pod has only its name and
	// UID, Node has only its name, and there is no extension. It is set in PostBind and
	// PreBindRollBack only.
	Recovered bool

	extension any
}

// Parameter returns the annotation <plugin>.prebind.dev/<key> of the Binding or, if the source includes
// it, of the pod. The Binding's value wins. If neither has the annotation, the Value is empty and On
// is the Binding.
func (bc *BindContext) Parameter(plugin string, source Source, key string) Parameter {
	all := framework.Parameters(plugin, source, bc.Binding, bc.Pod)
	if p, ok := all[key]; ok {
		return p
	}
	return Parameter{
		Annotation: plugin + "." + framework.Domain + "/" + key,
		On:         Object{Kind: "Binding", Namespace: bc.Pod.Namespace, Name: bc.Pod.Name},
	}
}

// Extend sets the extension of the context, for PreFlight and PreBind of the same pass.
func Extend[T any](bc *BindContext, value T) { bc.extension = value }

// Extension returns the extension of the context. An error means a bug in the plugin.
func Extension[T any](bc *BindContext) (T, error) {
	value, ok := bc.extension.(T)
	if !ok {
		return value, fmt.Errorf("the extension of the bind context is a %T, want %T", bc.extension, value)
	}
	return value, nil
}

// NewPlugin returns a Plugin that only decides or waits: decide reads from the cache and returns the
// verdict. Its error rejects the bind.
func NewPlugin(name string, decide func(ctx context.Context, cache Reader, bc *BindContext) (Verdict, error)) Plugin {
	return decider{name: name, decide: decide}
}

type decider struct {
	name   string
	decide func(context.Context, Reader, *BindContext) (Verdict, error)
}

type decided struct {
	verdict Verdict
	err     error
}

// Name implements Plugin.
func (d decider) Name() string { return d.name }

// SetupBindContextExtension implements BindContextExtender.
func (d decider) SetupBindContextExtension(ctx context.Context, cache Reader, bc *BindContext) error {
	verdict, err := d.decide(ctx, cache, bc)
	Extend(bc, decided{verdict: verdict, err: err})
	return nil
}

// PreFlight implements Plugin.
func (d decider) PreFlight(bc *BindContext) (Verdict, error) {
	result, err := Extension[decided](bc)
	if err != nil {
		return Verdict{}, err
	}
	return result.verdict, result.err
}
