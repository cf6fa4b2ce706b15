// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/mutators"
)

// BindContext is the context of one bind. The engine creates it for an attempt, which can
// outlive the scheduler's call. Plugins must not set its fields. Its methods are safe for
// concurrent use.
type BindContext struct {
	// Pod is the pod at the start of the attempt. It is shared with the cache: do not change
	// it.
	Pod *corev1.Pod
	// Node is the target of the Binding, without images and managed fields. It is shared with
	// the cache: do not change it.
	Node *corev1.Node
	// Binding is the object that the scheduler posted, without the output of mutators.
	Binding *corev1.Binding
	// User posted the Binding.
	User authenticationv1.UserInfo
	// Attempt identifies this attempt. Plugins include it in their writes, so that the owner
	// of a write is known even after a crash. A bound pod has it in the annotation
	// AttemptAnnotation.
	Attempt string
	// Recovered means that the context was created from a Mark after the process of the
	// attempt ended. Then Pod has only its name and UID, Node has only its name, and there are
	// no extensions. It is set in PostBind and PreBindRollBack only.
	Recovered bool
	// DryRun means that nothing may be written. It is set in SetupBindContextExtension and
	// PreFlight only.
	DryRun bool
	// Now is the time of the decision. PreFlight uses it instead of a clock.
	Now time.Time
	// Since is the start of the wait: the start of PreBind if AwaitReady repeats PreFlight,
	// otherwise Now.
	Since time.Time
	// Live means that the reader of this call is the live one. In PreFlight, it means that Pod,
	// Node, and the extension were read from the API server for this decision.
	Live bool

	mu          sync.Mutex
	extensions  map[string]any
	intents     []string
	expected    []Waiting
	undone      []string
	waiting     Waiting
	annotations byPlugin
	// complete contains annotations by complete key.
	complete, labels byPlugin
	warnings         []string
	findings         []Finding
	devices          []Device
	// calls is the number of calls that wait for the bind. away means that there were some, and that all have ended.
	calls int
	away  bool
}

// byPlugin contains values by plugin and key.
type byPlugin map[string]map[string]string

func (b *byPlugin) set(plugin, key, value string) {
	if *b == nil {
		*b = byPlugin{}
	}
	if (*b)[plugin] == nil {
		(*b)[plugin] = map[string]string{}
	}
	(*b)[plugin][key] = value
}

// clone returns a copy, or nil if it is empty.
func (b byPlugin) clone() byPlugin {
	var all byPlugin
	all.copy(b)
	return all
}

// copy sets all values of from.
func (b *byPlugin) copy(from byPlugin) {
	for plugin, values := range from {
		for key, value := range values {
			b.set(plugin, key, value)
		}
	}
}

// Annotate adds the annotation <plugin>.prebind.dev/<key> to the Binding. The API server
// copies it to the pod with the bind, and replaces a value that the pod already has. plugin is
// the caller's own name. The last value of a key counts. PreFlight, PreBind and the look of a
// Waiter may call it; a plugin whose PreBind is skipped calls it in PreFlight. An invalid key
// fails the bind.
func (bc *BindContext) Annotate(plugin, key, value string) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.annotations.set(plugin, key, value)
}

// SetAnnotation is Annotate with a complete key, such as ray.io/topology. plugin is the caller's own
// name. It is for plugins whose keys the operator allows. A key of an earlier round of the attempt is dropped
// unless PreFlight or PreBind sets it again.
func (bc *BindContext) SetAnnotation(plugin, key, value string) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.complete.set(plugin, key, value)
}

// SetLabel adds the label with the complete key to the Binding. The API server copies it to the pod with the
// bind, and replaces a value that the pod already has. It requires Kubernetes 1.35 or later. An invalid key or
// value fails the bind. It drops keys of earlier rounds like SetAnnotation.
func (bc *BindContext) SetLabel(plugin, key, value string) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.labels.set(plugin, key, value)
}

// Warn records a warning for the client that posted the Binding. PreFlight and the look of a Waiter may call
// it. The engine shows each text once.
func (bc *BindContext) Warn(format string, args ...any) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.warnings = append(bc.warnings, fmt.Sprintf(format, args...))
}

// Warnings returns the recorded warnings in order. The caller owns the slice.
func (bc *BindContext) Warnings() []string {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return slices.Clone(bc.warnings)
}

// Finding is the result of one rule of a plugin, such as a policy. Its JSON is stable.
type Finding struct {
	// Name of the rule.
	Name string `json:"name"`
	// Verdict is a word, such as "waiting".
	Verdict string `json:"verdict"`
	// Message explains the verdict. It may be empty.
	Message string `json:"message,omitempty"`
}

// Found records, in PreFlight or the look of a Waiter, the result of one rule. 'prebind explain' shows it. If
// there are many findings, it shows the first ones only.
func (bc *BindContext) Found(f Finding) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.findings = append(bc.findings, f)
}

// Findings returns the recorded findings in order. The caller owns the slice.
func (bc *BindContext) Findings() []Finding {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return slices.Clone(bc.findings)
}

// Annotations returns the recorded annotations by plugin and key, or nil. The caller owns the
// maps.
func (bc *BindContext) Annotations() map[string]map[string]string {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return bc.annotations.clone()
}

// CompleteAnnotations returns the annotations that SetAnnotation recorded, by plugin and complete key, or nil.
// The caller owns the maps.
func (bc *BindContext) CompleteAnnotations() map[string]map[string]string {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return bc.complete.clone()
}

// Labels returns the recorded labels by plugin and complete key, or nil. The caller owns the maps.
func (bc *BindContext) Labels() map[string]map[string]string {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return bc.labels.clone()
}

// Device is one device, or a share of one, that a pod gets; see mutators.Device.
type Device = mutators.Device

// Has records, in PreFlight, devices that the pod gets if the bind is allowed. Mutators
// receive them.
func (bc *BindContext) Has(devices ...Device) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.devices = append(bc.devices, devices...)
}

// Devices returns the recorded devices in order. The caller owns the slice.
func (bc *BindContext) Devices() []Device {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return append([]Device(nil), bc.devices...)
}

// Waiting describes what a bind waits for. The zero Waiting means no wait.
type Waiting struct {
	// Object is the object that has to change. It may be the zero Object.
	Object Object
	// For completes the sentence "waiting for …".
	For string
	// Until is the time at which Await looks again through the live reader, even if nothing has
	// changed. Set it for a state that ends with time. It must be in the future. Zero means never.
	Until time.Time
	// Turn means that the bind waits for its turn, which it gets only while its client is not away; see BindContext.Away.
	// The engine then holds each call for at least a moment.
	Turn bool
}

// ReportWait records the current wait of the plugin, for events, the response to the client, and
// 'prebind status'. Await calls it.
func (bc *BindContext) ReportWait(w Waiting) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.waiting = w
}

// ReportedWait returns the wait that ReportWait recorded last, or the zero Waiting.
func (bc *BindContext) ReportedWait() Waiting {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return bc.waiting
}

// Away returns whether the client is between two calls. Its next call may reach another replica, or never come. In PreBind, a
// plugin that gives binds of several pods something in turn, and holds it only in the memory of this replica, skips binds whose
// client is away. Otherwise, others wait for what no bind uses. Await looks again when a call begins or ends, if the Ref of Calls is
// among its objects.
func (bc *BindContext) Away() bool {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return bc.away
}

// Calls returns the reference to the calls for the bind. It changes with Away.
func (bc *BindContext) Calls() Ref { return Ref{kind: "Binding", selection: "calls", name: bc.Attempt} }

// CallBegan records that a call waits for the bind. The engine calls it, and CallEnded at the end of the wait.
func (bc *BindContext) CallBegan() {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.calls++
	bc.away = false
}

// CallEnded records that a call no longer waits for the bind.
func (bc *BindContext) CallEnded() {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.calls--
	bc.away = bc.calls == 0
}

// Intend records, in PreFlight, a write that PreBind will make, as a complete sentence. The
// response to a dry run contains it.
func (bc *BindContext) Intend(format string, args ...any) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.intents = append(bc.intents, fmt.Sprintf(format, args...))
}

// Intents returns the recorded intents in order. The caller owns the slice.
func (bc *BindContext) Intents() []string {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return append([]string(nil), bc.intents...)
}

// ExpectWait records, in PreFlight, a wait that PreBind will probably need. Dry runs and
// 'prebind explain' show it.
func (bc *BindContext) ExpectWait(w Waiting) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.expected = append(bc.expected, w)
}

// ExpectedWaits returns the waits that ExpectWait recorded, in order. The caller owns the slice.
func (bc *BindContext) ExpectedWaits() []Waiting {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return append([]Waiting(nil), bc.expected...)
}

// Undid records, in PreBindRollBack, an action that undid a write, such as "released the lock". The
// pod's event shows it.
func (bc *BindContext) Undid(format string, args ...any) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.undone = append(bc.undone, fmt.Sprintf(format, args...))
}

// Undone returns the actions that Undid recorded, in order. The caller owns the slice.
func (bc *BindContext) Undone() []string {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return append([]string(nil), bc.undone...)
}

// Checkpoint is a state of the records of a BindContext.
type Checkpoint struct {
	intents, expected, devices, warnings, findings int
	annotations, complete, labels                  byPlugin
}

// Checkpoint returns the current state of the records of PreFlight. The engine uses it to
// discard the records of a PreFlight that it repeats.
func (bc *BindContext) Checkpoint() Checkpoint {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	return Checkpoint{
		intents: len(bc.intents), expected: len(bc.expected), devices: len(bc.devices), warnings: len(bc.warnings), findings: len(bc.findings),
		annotations: bc.annotations.clone(), complete: bc.complete.clone(), labels: bc.labels.clone(),
	}
}

// Restore discards the records that were made since the checkpoint.
func (bc *BindContext) Restore(to Checkpoint) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	bc.intents, bc.expected, bc.devices = bc.intents[:to.intents], bc.expected[:to.expected], bc.devices[:to.devices]
	bc.warnings, bc.findings = bc.warnings[:to.warnings], bc.findings[:to.findings]
	bc.annotations, bc.complete, bc.labels = to.annotations, to.complete, to.labels
}

// again returns a context for another decision on the same bind.
func (bc *BindContext) again(pod *corev1.Pod, node *corev1.Node, now, since time.Time, live bool) *BindContext {
	return &BindContext{
		Pod: pod, Node: node, Binding: bc.Binding, User: bc.User, Attempt: bc.Attempt,
		DryRun: bc.DryRun, Now: now, Since: since, Live: live,
	}
}

// adopt copies the extensions, the annotations, the labels and the warnings of a later decision, which has ended.
func (bc *BindContext) adopt(later *BindContext) {
	later.mu.Lock()
	defer later.mu.Unlock()
	bc.mu.Lock()
	defer bc.mu.Unlock()
	if bc.extensions == nil {
		bc.extensions = map[string]any{}
	}
	maps.Copy(bc.extensions, later.extensions)
	bc.annotations.copy(later.annotations)
	bc.complete.copy(later.complete)
	bc.labels.copy(later.labels)
	bc.warnings = append(bc.warnings, later.warnings...)
}

// ExtensionKey is the key of a value of type T that a plugin passes between its methods in a
// BindContext. Keys with the same name share the value, so a plugin uses its own name as a
// prefix.
type ExtensionKey[T any] struct{ name string }

// NewExtensionKey returns the key with the name.
func NewExtensionKey[T any](name string) ExtensionKey[T] { return ExtensionKey[T]{name: name} }

// Set stores the value, and replaces an earlier one.
func (k ExtensionKey[T]) Set(bc *BindContext, value T) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	if bc.extensions == nil {
		bc.extensions = map[string]any{}
	}
	bc.extensions[k.name] = value
}

// Get returns the value. An error means a bug in the plugin: the value was not set, or has
// another type.
func (k ExtensionKey[T]) Get(bc *BindContext) (T, error) {
	bc.mu.Lock()
	defer bc.mu.Unlock()
	var zero T
	stored, ok := bc.extensions[k.name]
	if !ok {
		return zero, fmt.Errorf("bind context has no extension %q: set it before reading it", k.name)
	}
	value, ok := stored.(T)
	if !ok {
		return zero, fmt.Errorf("extension %q of the bind context is a %T, want %T", k.name, stored, zero)
	}
	return value, nil
}
