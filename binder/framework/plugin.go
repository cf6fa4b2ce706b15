// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reader reads objects from the cache or from the API server. Objects from the cache are
// shared: do not change them. The cached Reader has the kinds that the plugin's Registration
// watches, pods without a node, and nodes. It returns an error for other kinds.
type Reader = client.Reader

// PreBinder is a PreBind plugin. It prepares a bind before the API server executes it. The
// other interfaces of this file are optional.
//
// One instance serves all binds concurrently. For one pair of pod UID and node, a replica runs
// only one of the writing methods (PreBind, PreBindRollBack, PostBind) at a time. Another
// replica can work on the same bind, so writes must contain BindContext.Attempt.
type PreBinder interface {
	// Name is the plugin's name in kebab-case, for flags, annotation keys, messages, and
	// metrics. It never changes.
	Name() string

	// PreBind writes what the pod needs on the node, and waits for it with Await. It
	// runs only if PreFlight returned Run.
	//
	// It must be idempotent: after a crash, on another replica, and when a scheduler repeats a
	// bind, it is called again and continues from the state in the API server. The context
	// outlives the scheduler's call and ends with the attempt's budget. Nil means that the bind
	// may proceed.
	PreBind(ctx context.Context, bc *BindContext) error
}

// BindContextExtender is a PreBinder that reads objects for its PreFlight.
type BindContextExtender interface {
	// SetupBindContextExtension reads everything that PreFlight needs, through the
	// reader, into an extension of the context (see ExtensionKey). It neither writes nor
	// rejects: PreFlight handles missing objects. An error means that a read failed.
	//
	// The engine calls it just before PreFlight, first with the cached reader. When it
	// fails, when PreFlight rejects, and when PreFlight returns Verify, the engine calls
	// it again with the live reader. So no bind is rejected based on the cache alone.
	SetupBindContextExtension(ctx context.Context, reader Reader, bc *BindContext) error
}

// PreFlighter is a PreBinder that decides before the first write of any plugin. A
// PreBinder without it always runs PreBind.
type PreFlighter interface {
	// PreFlight decides: Skip if there is nothing to do, Run if PreBind has to write or
	// to wait, or an error that says why the bind is rejected. It is a pure function of
	// the context and its extension. It reserves nothing, and it also runs for dry-run
	// requests.
	//
	// It records the writes that PreBind would make with BindContext.Intend, and what
	// PreBind would wait for with BindContext.ExpectWait. The engine discards these
	// records, and a rejection, when it repeats PreFlight on live objects.
	PreFlight(bc *BindContext) (Next, error)
}

// Next is the decision of a PreFlight that does not reject.
type Next int

const (
	// Run asks the engine to call PreBind.
	Run Next = iota
	// Skip means that the plugin has nothing to do for this bind. The engine calls neither
	// PreBind nor PreBindRollBack, as for the Skip of kube-scheduler's PreBindPreFlight.
	Skip
	// Verify asks the engine to repeat SetupBindContextExtension with the live reader,
	// and then PreFlight. Use it if a decision other than a rejection must not rely on the
	// cache. If BindContext.Live is set, Verify means Run.
	Verify
	// Accompany means that the plugin has work only while another plugin waits or writes. The
	// engine calls PreBind if the PreFlight of another plugin returns Run, and otherwise treats
	// Accompany as Skip.
	Accompany
	// Take means that the plugin has only something to reserve in memory. If no PreFlight returns Run,
	// the engine calls Take of the plugin, and treats true as Skip. Otherwise, and without a Taker,
	// Take means Run.
	Take
)

// Taker is a PreFlighter that can do its work in memory, without a wait. A bind for which all
// plugins skip or take needs no attempt, which costs a request to the API server.
type Taker interface {
	// Take returns whether the bind may proceed without PreBind. The engine then allows the bind, and
	// does not report whether the pod is bound, so all that Take reserves must end by itself. Take
	// reads only the cache, is idempotent, and is not called for dry runs.
	Take(ctx context.Context, bc *BindContext) bool
}

// RollBacker is a PreBinder whose PreBind writes something that can be undone.
type RollBacker interface {
	// PreBindRollBack undoes the writes of PreBind for this bind, and nothing else.
	//
	// The engine calls it for every plugin whose PreBind was started, the failing one
	// included, in reverse order, on a context of its own, and repeats it when it fails.
	// PreBind can have stopped at any point, even before its first write. PreBindRollBack must
	// be idempotent, and must not change later writes of another attempt. The engine has
	// checked that the live pod is not bound to the node. Report with BindContext.Undid.
	PreBindRollBack(ctx context.Context, bc *BindContext) error
}

// Starter is a PreBinder with work of its own, such as reading objects that configure it.
type Starter interface {
	// Start runs until the context ends with the process. Prebind starts it after the plugin's watches, in
	// every replica.
	Start(ctx context.Context) error
	// HasSynced returns whether the plugin can decide. Before that, Prebind is not ready. It is safe for concurrent use.
	HasSynced() bool
}

// Confirmer is a PreBinder that checks again before the bind is allowed.
type Confirmer interface {
	// Confirm is called after the PreBind of all plugins, even if its own was skipped,
	// because another plugin's PreBind can have taken minutes. It only reads, through the
	// reader. If it fails with the cached reader, the engine calls it again with the live one
	// and BindContext.Live set. A plugin that must not rely on the cache returns an error if
	// Live is not set. An error ends the attempt, and the engine rolls it back.
	Confirm(ctx context.Context, reader Reader, bc *BindContext) error
}

// PostBinder is a PreBinder that acts after a bind.
type PostBinder interface {
	// PostBind is called after the engine has observed that this attempt bound the pod, for
	// plugins whose PreBind ran, in the same order. Best effort: it is not called if the
	// process exits first, unless the plugin is a Recoverer.
	PostBind(ctx context.Context, bc *BindContext)
}

// Recoverer is a PreBinder whose writes name the attempt that made them, so that they
// can be found and settled after a crash. Every RollBacker should be one.
type Recoverer interface {
	// Marks lists, from the cache, the attempts whose writes exist and were not confirmed
	// by PostBind. One replica at a time calls it, every few seconds. For each mark whose
	// replica is gone, the engine calls PostBind or PreBindRollBack with a recovered
	// BindContext. Both must tolerate marks that have changed since, and repeated calls.
	//
	// A plugin that keeps its marks where a tenant can write must treat them as untrusted, and
	// limit their number per object. A mark only identifies an attempt. Before the plugin undoes
	// a write, it checks fields that the API server guards, or a record in Prebind's own
	// namespace, by the pod's UID.
	Marks(ctx context.Context) ([]Mark, error)
}

// Mark names the attempt that made a write.
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

// Tidier is a PreBinder that keeps state for running pods.
type Tidier interface {
	// Tidy releases the state of pods that have finished or no longer exist. One replica at a
	// time calls it, every few minutes.
	Tidy(ctx context.Context) error
}

// OnRequest is a PreBinder that takes part only in binds that request it: by an annotation
// <name>.prebind.dev/… on the objects of RequestedBy, or by its name in
// binder.prebind.dev/require. A PreBinder without it takes part in every bind.
type OnRequest interface {
	// RequestedBy returns the objects that may carry the annotations. It never changes.
	RequestedBy() Source
}

// Source is where a plugin's parameters may be.
type Source int

const (
	// ByBinding means the Binding only, so that users cannot set them.
	ByBinding Source = iota
	// ByBindingOrPod means the Binding and the pod. The Binding's value of a key wins.
	ByBindingOrPod
)
