// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reader reads objects, either from the cache or from the API server. Objects from the
// cache are shared: never change them. The cached Reader has the kinds that the
// plugin's Registration watches, pods without a node, and nodes; it returns an error
// for other kinds.
type Reader = client.Reader

// PreBinder is a PreBind plugin: it makes a bind safe before the API server carries it
// out. The other interfaces of this file are optional.
//
// One instance serves all binds, concurrently. For one (pod UID, node) a replica never
// runs two of the writing methods (PreBind, PreBindRollBack, PostBind) at the same
// time. Another replica can work on the same bind, so a write has to name the attempt
// that made it: see BindContext.Attempt.
type PreBinder interface {
	// Name is the plugin's name in kebab-case. Flags, annotation prefixes, messages and
	// metrics show it. It never changes.
	Name() string

	// PreBind writes what the pod needs on the node, and waits for it with Await. It
	// runs only if PreFlight returned Run.
	//
	// It must be idempotent: after a crash, on another replica, or when a scheduler
	// repeats a bind that something else rejected, it is called again for the same bind
	// and continues from the state in the API server. The context outlives the
	// scheduler's call and ends when the attempt's budget is spent. It returns nil only
	// when the bind may proceed as far as this plugin is concerned.
	PreBind(ctx context.Context, bc *BindContext) error
}

// BindContextExtender is a PreBinder that reads objects for its PreFlight.
type BindContextExtender interface {
	// SetupBindContextExtension reads everything that PreFlight needs, through the
	// reader and through nothing else, into an extension of the context (see
	// ExtensionKey). It neither writes nor rejects: an object that does not exist is a
	// fact for PreFlight. An error means that something could not be read.
	//
	// The engine calls it just before PreFlight, first with the cached reader. When it
	// fails, when PreFlight rejects, and when PreFlight returns Verify, the engine calls
	// it once more with the live reader. So no bind is rejected based on the cache alone.
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
	// Skip reports that this bind needs nothing of the plugin: the engine calls neither
	// PreBind nor PreBindRollBack. It is the Skip of kube-scheduler's PreBindPreFlight.
	Skip
	// Verify asks the engine to repeat SetupBindContextExtension with the live reader,
	// and then PreFlight. Use it when the decision must not rely on the cache although it
	// is no rejection. If BindContext.Live is set, Verify counts as Run.
	Verify
)

// RollBacker is a PreBinder whose PreBind writes something that can be undone.
type RollBacker interface {
	// PreBindRollBack undoes what PreBind wrote for this bind, and nothing else.
	//
	// The engine calls it for every plugin whose PreBind was started, the failing one
	// included, in reverse order, on a context of its own, and repeats it when it fails.
	// PreBind may have stopped anywhere, even before its first write. It must be
	// idempotent, and leave alone what another attempt has written since. The engine has
	// seen that the live pod is not bound to the node. Report what is undone with
	// BindContext.Undid.
	PreBindRollBack(ctx context.Context, bc *BindContext) error
}

// Confirmer is a PreBinder that checks once more before the bind is allowed.
type Confirmer interface {
	// Confirm is called after the PreBind of all plugins, even if its own was skipped,
	// because another plugin's PreBind can have taken minutes. It only reads, through the
	// reader: when it fails with the cached reader, the engine calls it again with the
	// live one and BindContext.Live set. So a plugin that must not rely on the cache returns
	// an error if Live is not set. An error ends the attempt, and the engine rolls it back.
	Confirm(ctx context.Context, reader Reader, bc *BindContext) error
}

// PostBinder is a PreBinder that has something to do after a bind.
type PostBinder interface {
	// PostBind is called after the engine saw the pod bound to the node by this attempt,
	// for plugins whose PreBind ran, in the order of PreBind. Best effort: it is not
	// called if the process exits first, unless the plugin is a Recoverer.
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
	// A plugin that keeps its marks where a tenant can write must treat them as the
	// tenant's data, and bound how many it returns for one object. A mark only says which
	// attempt to look at; it never decides that something is undone. Before the plugin
	// undoes a write, it checks fields that the API server guards, or a record in
	// Prebind's own namespace, by the pod's UID.
	Marks(ctx context.Context) ([]Mark, error)
}

// Mark names the attempt that made a write.
type Mark struct {
	// Pod and PodUID are the pod that the write was made for. The engine reads the pod by
	// its name and decides by its UID. The name should be one that a tenant cannot write;
	// where there is none, PreBindRollBack must not undo anything that a running pod could
	// use.
	Pod    types.NamespacedName
	PodUID types.UID
	// Node is the target of the bind. It may be a tenant's data.
	Node string
	// Attempt is BindContext.Attempt.
	Attempt string
}

// Tidier is a PreBinder that keeps something for as long as a pod runs.
type Tidier interface {
	// Tidy releases what belongs to pods that are gone or finished. One replica at a time
	// calls it, every few minutes.
	Tidy(ctx context.Context) error
}

// OnRequest is a PreBinder that takes part only in binds that request it: by an annotation
// <name>.prebind.dev/… on the objects of RequestedBy, or by its name in
// binder.prebind.dev/require. A PreBinder without it takes part in every bind.
type OnRequest interface {
	// RequestedBy returns the objects that may carry the annotations. It never changes.
	RequestedBy() Source
}

// Source says which objects may carry a plugin's parameters.
type Source int

const (
	// ByBinding is the Binding only, so a scheduler's plugin sets them.
	ByBinding Source = iota
	// ByBindingOrPod is the Binding and the pod. The Binding's value of a key wins.
	ByBindingOrPod
)
