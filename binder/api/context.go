// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

// BindContext is one bind on its way through the plugins. It is made by the
// engine and lives as long as the attempt, so it may outlive the scheduler's
// call. Its exported fields are set once and read only; the methods are safe
// for concurrent use.
type BindContext struct {
	// Pod is the pod to be bound, as it was when the attempt began. It may be
	// shared with a cache: never change it.
	Pod *corev1.Pod
	// Node is the target, with the same rule. Images and managed fields are left
	// out of it.
	Node *corev1.Node
	// Binding is what the scheduler posted, before any mutator.
	Binding *corev1.Binding
	// User posted the Binding.
	User authenticationv1.UserInfo
	// Attempt identifies this bind's PreBind in this replica. What a plugin writes
	// carries it, so that it can be told whose write it is, also after a crash. The
	// pod carries it as the annotation binder.<domain>/attempt once it is bound.
	Attempt string
	// Recovered says that this context was made from a Mark, after the process that
	// made the write had ended: Pod has its name and UID only, Node its name, and
	// there are no extensions. Only PostBind and PreBindRollBack ever see it true.
	Recovered bool
	// DryRun says that nothing may be written. Only PreFlight ever sees it true.
	DryRun bool

	mu         sync.Mutex
	extensions map[string]any
	intents    []string
	undone     []string
	waiting    Waiting
}

// Waiting is what a PreBind is waiting for.
type Waiting struct {
	// Object is what has to change; it may be the zero Object.
	Object Object
	// For is the rest of "waiting for …", in plain words.
	For string
}

// Waiting records what the plugin waits for from now on. Scheduler, events and
// operators are shown it.
func (bc *BindContext) Waiting(w Waiting) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.waiting = w
}

// WaitingFor returns what was last given to Waiting, or the zero Waiting.
func (bc *BindContext) WaitingFor() Waiting {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return bc.waiting
}

// Intend records, in PreFlight, a write that PreBind will make: a whole
// sentence that a dry run shows to the user.
func (bc *BindContext) Intend(format string, args ...any) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.intents = append(bc.intents, fmt.Sprintf(format, args...))
}

// Intents returns the recorded intents in order; the caller owns the slice.
func (bc *BindContext) Intents() []string {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return append([]string(nil), bc.intents...)
}

// Undid records, in PreBindRollBack, what was undone, as in "released the lock".
// The pod's event shows it.
func (bc *BindContext) Undid(format string, args ...any) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.undone = append(bc.undone, fmt.Sprintf(format, args...))
}

// Undone returns what was recorded by Undid, in order; the caller owns the slice.
func (bc *BindContext) Undone() []string {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return append([]string(nil), bc.undone...)
}

// ExtensionKey names a value of type T that a plugin keeps in a BindContext
// between its own methods. Two keys with one name share their value, so a
// plugin begins the name with its own.
type ExtensionKey[T any] struct{ name string }

// NewExtensionKey makes the key with this name.
func NewExtensionKey[T any](name string) ExtensionKey[T] { return ExtensionKey[T]{name: name} }

// Set stores the value; it replaces an earlier one.
func (k ExtensionKey[T]) Set(bc *BindContext, value T) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	if bc.extensions == nil {
		bc.extensions = map[string]any{}
	}
	bc.extensions[k.name] = value
}

// Get returns the value, or an error when there is none or one of another type:
// a mistake in the plugin, never in the request.
func (k ExtensionKey[T]) Get(bc *BindContext) (T, error) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	var zero T
	stored, ok := bc.extensions[k.name]
	if !ok {
		return zero, fmt.Errorf("the bind context has no extension %q: it must be set before it is read", k.name)
	}
	value, ok := stored.(T)
	if !ok {
		return zero, fmt.Errorf("the bind context's extension %q is a %T, not a %T", k.name, stored, zero)
	}
	return value, nil
}
