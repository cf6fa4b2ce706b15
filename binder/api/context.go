// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"maps"
	"sync"
	"time"

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

	mu          sync.Mutex
	extensions  map[string]any
	intents     []string
	wouldWait   []Waiting
	undone      []string
	waiting     Waiting
	annotations map[string]map[string]string
	devices     []Device
}

// Annotate adds <plugin>.<domain>/<key> to the Binding, and so to the pod; plugin
// is the caller's own name, and key the part behind the slash. The last value of a
// key counts. It is for PreFlight and PreBind: a plugin whose PreBind is skipped
// annotates in PreFlight. A key that is not valid is the plugin's own failure.
func (bc *BindContext) Annotate(plugin, key, value string) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	if bc.annotations == nil {
		bc.annotations = map[string]map[string]string{}
	}
	if bc.annotations[plugin] == nil {
		bc.annotations[plugin] = map[string]string{}
	}
	bc.annotations[plugin][key] = value
}

// Annotations returns what was given to Annotate, by plugin and key; nil where there
// is nothing. The caller owns the maps.
func (bc *BindContext) Annotations() map[string]map[string]string {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	if len(bc.annotations) == 0 {
		return nil
	}
	all := make(map[string]map[string]string, len(bc.annotations))
	for plugin, annotations := range bc.annotations {
		all[plugin] = maps.Clone(annotations)
	}
	return all
}

// Device is one device, or a share of one, that is a pod's.
type Device struct {
	// Request is what the pod knows it by: the name that its requester gave.
	Request string
	// Driver and Pool are those of a ResourceClaim's allocation, else empty.
	Driver, Pool string
	// Name is the device's own.
	Name string
	// Share is the part of the device, such as 0.5; empty for all of it.
	Share string
}

// Has records, in PreFlight, a device that is the pod's when the bind is allowed.
// The mutators are shown it.
func (bc *BindContext) Has(devices ...Device) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.devices = append(bc.devices, devices...)
}

// Devices returns what was given to Has, in order; the caller owns the slice.
func (bc *BindContext) Devices() []Device {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return append([]Device(nil), bc.devices...)
}

// Waiting is what a PreBind is waiting for.
type Waiting struct {
	// Object is what has to change; it may be the zero Object.
	Object Object
	// For is the rest of "waiting for …", in plain words.
	For string
	// Since is when the wait began, where the plugin has observed that itself, by the clock of
	// this process; zero where it has not. It must not be a time that a tenant can write.
	// Calls for one bind reach several replicas, so the first call that this replica receives
	// may come long after the wait began. It is used of what is given to WouldWait.
	Since time.Time
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

// WouldWait records, in PreFlight, what PreBind will have to wait for as far as it
// can be seen: whoever asks what a bind would do is told.
func (bc *BindContext) WouldWait(w Waiting) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.wouldWait = append(bc.wouldWait, w)
}

// WouldWaitFor returns what was given to WouldWait, in order; the caller owns the
// slice.
func (bc *BindContext) WouldWaitFor() []Waiting {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return append([]Waiting(nil), bc.wouldWait...)
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
