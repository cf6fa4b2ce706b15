// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/mutators"
)

// Device is one device, or a share of one, that a pod gets; see mutators.Device.
type Device = mutators.Device

// Finding is the result of one rule of a plugin, such as a policy. Its JSON is stable.
type Finding struct {
	// Name of the rule.
	Name string `json:"name"`
	// Verdict is a word, such as "waiting".
	Verdict string `json:"verdict"`
	// Message explains the verdict. It may be empty.
	Message string `json:"message,omitempty"`
}

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
	// Attempt identifies the work on this bind in this replica. A bound pod has it in the annotation AttemptAnnotation.
	Attempt string
	// Now is the time of the pass. PreFlight uses it instead of a clock. Since is the time of the
	// first call for this bind that this replica received.
	Now, Since time.Time
	// Written means that PreBind of this plugin has succeeded for this attempt. So a write that is
	// missing was undone by somebody else, or is not in the cache yet. Use it to wait or to
	// reject in place of a second write. Most plugins do not need it.
	Written bool
	// DryRun means that nothing may be written. Audit means that this is because of the mode Audit: the request is not a dry run.
	DryRun, Audit bool

	extension any
}

// Mark returns the mark of the writes of this attempt.
func (bc *BindContext) Mark() Mark {
	pod := types.NamespacedName{Namespace: bc.Pod.Namespace, Name: bc.Pod.Name}
	return Mark{Pod: pod, PodUID: bc.Pod.UID, Node: bc.Node.Name, Attempt: bc.Attempt}
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
// verdict. Its error rejects the bind, except one of KindWait.
func NewPlugin(name string, decide func(ctx context.Context, cache Reader, bc *BindContext) (Verdict, error)) *Decider {
	return &Decider{name: name, decide: decide}
}

// Decider is the Plugin of NewPlugin.
type Decider struct {
	name   string
	decide func(context.Context, Reader, *BindContext) (Verdict, error)
}

// OnAnnotation returns the plugin as an OnRequest.
func (d *Decider) OnAnnotation() OnRequest { return requested{d} }

type requested struct{ *Decider }

// OnRequest implements OnRequest.
func (requested) OnRequest() {}

// Name implements Plugin.
func (d *Decider) Name() string { return d.name }

// SetupBindContextExtension implements BindContextExtender.
func (d *Decider) SetupBindContextExtension(ctx context.Context, cache Reader, bc *BindContext) error {
	verdict, err := d.decide(ctx, cache, bc)
	Extend(bc, verdict)
	return err
}

// PreFlight implements Plugin.
func (d *Decider) PreFlight(bc *BindContext) (Verdict, error) {
	return Extension[Verdict](bc)
}
