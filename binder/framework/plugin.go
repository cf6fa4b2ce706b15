// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package framework is the contract of PreBind plugins.
//
// A call decides on a bind in a loop. In each pass, the engine calls SetupBindContextExtension
// and PreFlight of every plugin, and repeats the pass when an object changes that a plugin has
// read. So a plugin needs no loop and no subscription of its own, sees what other plugins have
// changed, and all plugins wait at the same time.
//
// Every method returns an error of this package (Refuse, NotYet, Stale, Invalid, FromAPI), or any
// other error, which counts as the plugin's own failure.
package framework

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reader reads objects from the cache. A bind wakes up when an object changes that was read through the Reader of
// SetupBindContextExtension, and after List when any object of the kind in the namespace changes,
// also one that is created later. Reads through Handle.Cached and Handle.Live, and Wait.Object, do not wake it.
type Reader = client.Reader

// Plugin takes part in the decision on a bind. One instance serves all binds concurrently.
type Plugin interface {
	// Name is the plugin's name in kebab-case, for flags, annotation keys, messages, and
	// metrics. It never changes.
	Name() string

	// PreFlight decides: it returns the writes that PreBind has to make, the wait of the bind, and
	// the annotations and devices of the pod. It is a pure function of the context and its extension. It runs once
	// per pass, for dry runs too. The verdict of the last pass counts.
	//
	// An error rejects the bind, except one of KindWait, with which it waits. The cache can be behind, so the
	// engine repeats the pass for a second before it rejects.
	PreFlight(bc *BindContext) (Verdict, error)
}

// BindContextExtender is a Plugin that reads objects for its PreFlight.
type BindContextExtender interface {
	// SetupBindContextExtension reads, from the cache, everything that PreFlight needs into the
	// extension of the context (see Extend). It does not write. Its error counts as that of PreFlight, which is then not called.
	SetupBindContextExtension(ctx context.Context, cache Reader, bc *BindContext) error
}

// PreBinder is a Plugin that writes. Compared with kube-scheduler, PreBindRollBack is Unreserve, and is also called after a
// crash, and PreBind does not wait.
//
// For one attempt, a replica runs only one of PreBind, PreBindRollBack and PostBind at a time. After a lost Lease, another replica can run
// PreBindRollBack or PostBind of it at the same time. Those of other attempts at the
// same bind can run at the same time, also in this replica. The context of PreBind ends with the hold of the call, and that of the others
// after 30 s.
//
// Two replicas can work on one bind, each with its own attempt. So every write contains
// BindContext.Mark, beside the marks of other attempts. Never replace them: the other replica may
// have allowed the bind, which can take effect for BindSettles. A lock is free when its last mark is gone.
// PreBindRollBack deletes an object with its last mark. An object that stays after the bind needs the pod UID and the node in
// its name: otherwise, the rollback of an attempt for another node deletes what the bound pod uses. An object that does
// not depend on the node needs neither if PostBind removes all marks, and no attempt adds one to an object without marks.
type PreBinder interface {
	Plugin

	// PreBind makes the next writes and returns; it never waits. The engine calls it when the
	// verdict has Writes, and repeats the pass after it. While the cache does not show what
	// PreBind wrote, PreFlight keeps asking for it; the engine then waits for a change before it
	// calls PreBind again.
	//
	// It must be idempotent: after a crash, on another replica, and when a scheduler repeats the
	// bind, it continues from the state in the API server. Every write is a compare-and-swap. An
	// error of the kind Wait, such as a conflict, means that the cache is behind: the bind waits
	// for a change, or for 2 s. Every other error rejects the bind at once, but a Refuse after more than a second of
	// PreBind repeats the pass once.
	PreBind(ctx context.Context, bc *BindContext) error

	// PreBindRollBack undoes the writes of PreBind with this mark, and nothing else. The engine
	// calls it for every plugin whose PreBind was started, in reverse order (after a crash, in any order), and repeats it
	// through Marks if it fails. PreBind can have stopped at any point, even before its first write, and the cache can lack
	// its last writes. PreBindRollBack must be idempotent, and must not change later writes of another attempt.
	// The engine has checked that the live pod is not bound to the node.
	PreBindRollBack(ctx context.Context, m Mark) error

	// PostBind confirms the writes with this mark. The pod is bound to the node: the engine has just read it from the
	// API server. PostBind must not change the pod, which can have ended since. It is
	// called for plugins whose PreBind was started, in order, and repeated through Marks, in any order, if it
	// fails or if the process ends first.
	PostBind(ctx context.Context, m Mark, bound *corev1.Pod) error

	// Marks lists, from the cache, the attempts whose writes exist and were not confirmed by
	// PostBind. A mark may be listed twice. Each replica calls it about every ten seconds. For each mark whose attempt is
	// gone, the engine calls PostBind or PreBindRollBack.
	//
	// A plugin that keeps its marks where a tenant can write must treat them as untrusted, and
	// limit their number per object.
	// Objects that are being deleted, for example until a finalizer is removed, have no marks.
	Marks(ctx context.Context) ([]Mark, error)
}

// Reserver is a Plugin that reserves something in the memory of this replica, such as a slot.
type Reserver interface {
	// Reserve is called when all other plugins are ready and the plugin's verdict has late Writes. The
	// reservation must end by itself, because the engine does not report whether the pod is bound. It
	// reads only the cache and is idempotent. False means that there was nothing to reserve any
	// more: the bind waits for a change. It is not called for dry runs.
	Reserve(bc *BindContext) bool
}

// Mark names the attempt that made a write. Plugins store it with the write. Marks are equal if they name
// the same attempt. The form that encoding/json gives it is stable.
type Mark struct {
	// Pod and PodUID identify the pod of the write. The engine reads the pod by name and
	// decides by UID. If a tenant can write the name, PreBindRollBack must not undo anything
	// that a running pod could use.
	Pod    types.NamespacedName
	PodUID types.UID
	// Node is the target of the bind. It may be untrusted.
	Node string
	// Attempt is BindContext.Attempt.
	Attempt string
}

// Tidier is a Plugin that keeps state for running pods.
type Tidier interface {
	// Tidy releases the state of pods that have finished or no longer exist. The leader calls it, every two
	// minutes. For some seconds, two replicas can lead. The context ends after 20 s.
	Tidy(ctx context.Context) error
}

// Starter is a Plugin with work of its own, such as reading objects that configure it.
type Starter interface {
	// Start runs until the context ends with the process. Prebind starts it after the plugin's watches, in
	// every replica.
	Start(ctx context.Context) error
	// HasSynced returns whether the plugin can decide. Before that, Prebind is not ready. It is safe for concurrent use.
	HasSynced() bool
}

// OnRequest is a Plugin that takes part only in binds that request it: by an annotation
// <name>.prebind.dev/… on the Binding or the pod, or by its name in
// binder.prebind.dev/require. With the latter alone, its parameters are empty. A Plugin without it
// takes part in every bind.
type OnRequest interface {
	Plugin
	// OnRequest is not called: it marks the plugin.
	OnRequest()
}

// Observer is a Plugin that reports what binds wait for and how they are decided. Its methods must not block. They
// receive the context and the extension of the last pass, and are not called for dry runs.
type Observer interface {
	// BindWaits is called when a call is held, and when what it waits for changes. A call that gets no seat is answered without it.
	BindWaits(ctx context.Context, bc *BindContext, waits []Wait)
	// BindDecided is called when a call is allowed or rejected. A bind that is not called any more ends without it.
	BindDecided(ctx context.Context, bc *BindContext)
}

// Verdict is the decision of a plugin on a bind that it does not reject. The zero Verdict means
// that the bind may proceed. The engine owns its maps and slices.
type Verdict struct {
	// Writes are the writes that PreBind has to make. Each completes the sentence "the plugin would …", for
	// dry runs. They require a PreBinder, or a Reserver if Late is set.
	Writes []string
	// Late means that the writes have to wait until all other plugins are ready. The engine then
	// calls Reserve instead of PreBind.
	Late bool
	// Permanent means that PreBindRollBack does not undo the writes; see Wait.First.
	Permanent bool
	// Wait is what the bind waits for. The zero Wait means nothing.
	Wait Wait
	// Annotations and Labels are added to the Binding, and by the API server to the pod. An
	// annotation without a slash gets the prefix <plugin>.prebind.dev/. Labels require Kubernetes
	// 1.35 or later, or 1.33 and 1.34 with the feature gate PodTopologyLabelsAdmission. An invalid
	// key or value rejects the bind. Of plugins that set the same key, the last wins; those of WithPlugin come after the shipped ones.
	Annotations, Labels map[string]string
	// Devices are what the pod gets. Mutators receive them.
	Devices []Device
	// Warnings are shown to the client that posted the Binding.
	Warnings []string
	// Findings are the results of single rules of the plugin. 'kubectl prebind explain' shows them.
	Findings []Finding
}

// Wait is what a bind waits for.
type Wait struct {
	// Object has to change. It is only shown, and may be the zero Object.
	Object Object
	// For completes the sentence "waiting for …". It is not empty.
	For string
	// Until is when the pass is repeated even if nothing has changed. Set it for a state that ends
	// with time. Zero means never.
	Until time.Time
	// First means that permanent writes have to wait until this wait is over, because the node may turn out to be the wrong one. The wait must
	// not depend on such writes.
	First bool
}

// String returns "Kind namespace/name: for".
func (w Wait) String() string {
	if object := w.Object.String(); object != "" {
		return object + ": " + w.For
	}
	return w.For
}

// AtMost returns the wait with an end, or an error with the advice that rejects the bind if the end has come. The
// time counts from the bind's first call that this replica received.
func (bc *BindContext) AtMost(limit time.Duration, w Wait, advice string) (Wait, error) {
	end := bc.Since.Add(limit)
	if !bc.Now.Before(end) {
		return Wait{}, Refuse(w.Object, "still waiting for %s after %s", w.For, limit).Advise("%s", advice)
	}
	if w.Until.IsZero() || end.Before(w.Until) {
		w.Until = end
	}
	return w, nil
}
