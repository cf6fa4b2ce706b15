// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"maps"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/mutators"
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
	// DryRun says that nothing may be written. Only SetupBindContextExtension and
	// PreFlight ever see it true.
	DryRun bool
	// Now is the time of the decision. PreFlight uses it instead of a clock.
	Now time.Time
	// Since is when the plugin began to wait for this bind: the start of its PreBind
	// where AwaitReady repeats PreFlight, otherwise Now.
	Since time.Time
	// Live says that the reader of this call is the live one. In PreFlight, it says that
	// Pod, Node and the extension were read from the API server for this decision.
	Live bool

	mu          sync.Mutex
	extensions  map[string]any
	intents     []string
	expected    []Waiting
	undone      []string
	waiting     Waiting
	annotations map[string]map[string]string
	devices     []Device
}

// Annotate adds the annotation <plugin>.prebind.dev/<key> to the Binding. The API server
// copies it to the pod with the bind, and replaces a value that the pod already has. plugin is
// the caller's own name. The last value of a key counts. PreFlight, PreBind and the look of a
// Waiter may call it; a plugin whose PreBind is skipped calls it in PreFlight. An invalid key
// fails the bind.
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

// Device is one device, or a share of one, that a pod gets; see mutators.Device.
type Device = mutators.Device

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

// Waiting describes a wait of a bind. The zero Waiting means that there is nothing to wait
// for.
type Waiting struct {
	// Object has to change; it may be the zero Object.
	Object Object
	// For completes the sentence "waiting for …".
	For string
	// Until is when Await looks again through the live reader, even if nothing has changed:
	// set it for a state that ends with time. It must be in the future; zero for never.
	Until time.Time
	// Since is when the wait began, where the plugin has observed that itself, by the clock of
	// this process; zero where it has not. It must not be a time that a tenant can write.
	// Calls for one bind reach several replicas, so the first call that this replica receives
	// may come long after the wait began. It counts only in ExpectWait.
	Since time.Time
}

// ReportWait records what the plugin waits for from now on, for events, the answer to the
// client, and 'prebind status'. Await calls it.
func (bc *BindContext) ReportWait(w Waiting) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.waiting = w
}

// ReportedWait returns what was last given to ReportWait, or the zero Waiting.
func (bc *BindContext) ReportedWait() Waiting {
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

// ExpectWait records, in PreFlight, what PreBind will wait for as far as PreFlight can
// see. Dry runs and 'prebind explain' show it.
func (bc *BindContext) ExpectWait(w Waiting) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.expected = append(bc.expected, w)
}

// ExpectedWaits returns what was given to ExpectWait, in order; the caller owns the
// slice.
func (bc *BindContext) ExpectedWaits() []Waiting {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return append([]Waiting(nil), bc.expected...)
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

// Checkpoint is a state of a BindContext's records; see BindContext.Checkpoint.
type Checkpoint struct {
	intents, wouldWait, devices int
	annotations                 map[string]map[string]string
}

// Checkpoint returns the present state of the records of PreFlight. The engine uses it
// to discard the records of a PreFlight that it repeats.
func (bc *BindContext) Checkpoint() Checkpoint {
	annotations := bc.Annotations()
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return Checkpoint{intents: len(bc.intents), wouldWait: len(bc.expected), devices: len(bc.devices), annotations: annotations}
}

// Restore discards the records that were made since the checkpoint.
func (bc *BindContext) Restore(to Checkpoint) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.intents, bc.expected, bc.devices = bc.intents[:to.intents], bc.expected[:to.wouldWait], bc.devices[:to.devices]
	bc.annotations = to.annotations
}

// again returns a context for another decision on the same bind.
func (bc *BindContext) again(pod *corev1.Pod, node *corev1.Node, now, since time.Time, live bool) *BindContext {
	return &BindContext{
		Pod: pod, Node: node, Binding: bc.Binding, User: bc.User, Attempt: bc.Attempt,
		DryRun: bc.DryRun, Now: now, Since: since, Live: live,
	}
}

// adopt takes over the extensions and the annotations of a later decision.
func (bc *BindContext) adopt(later *BindContext) {
	annotations := later.Annotations()
	later.mu.Lock()
	extensions := maps.Clone(later.extensions)
	later.mu.Unlock()
	for plugin, values := range annotations {
		for key, value := range values {
			bc.Annotate(plugin, key, value)
		}
	}
	bc.mu.Lock()
	defer bc.mu.Unlock()
	if bc.extensions == nil {
		bc.extensions = map[string]any{}
	}
	maps.Copy(bc.extensions, extensions)
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
