// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// PreBinder is a PreBind plugin: it makes a bind safe before the API server
// carries it out.
//
// One instance serves all binds, concurrently. For one (pod UID, node) a replica
// never runs two of the writing methods at the same time; another replica may be
// working on the same bind, so that what is written has to say who wrote it: see
// BindContext.Attempt.
type PreBinder interface {
	// Name is the plugin's name in kebab-case: the one that flags, annotation
	// prefixes, messages and metrics show. It never changes.
	Name() string

	// PreBind writes what the pod needs on the node and waits until it is so.
	//
	// It must be idempotent: after a crash, or on another replica, it is called
	// again for the same bind and goes on from what the API server holds; so it
	// is when a scheduler repeats a bind that something else refused. The
	// context outlives the scheduler's call and ends when the budget for the
	// whole attempt is spent; while it waits it tells by BindContext.Waiting
	// what for. It returns nil only when the bind may go ahead as far as this
	// plugin is concerned.
	PreBind(ctx context.Context, bc *BindContext) error

	// PreBindRollBack undoes what PreBind wrote for this bind, and nothing else.
	//
	// The engine calls it for every plugin whose PreBind was started, the failing
	// one included, in reverse order, on a context of its own, and repeats it when
	// it fails. PreBind may have got anywhere: not a single write may have
	// happened. It must be idempotent, and leave alone what another attempt has
	// written since. The live pod was seen not to be bound to the node. What it
	// undoes it tells by BindContext.Undid.
	PreBindRollBack(ctx context.Context, bc *BindContext) error
}

// PreFlighter is a PreBinder with something to check before the first write of
// any plugin.
type PreFlighter interface {
	// PreFlight reads, and never writes: it also runs for dry-run requests. It
	// leaves what it found in the BindContext for PreBind (see ExtensionKey) and
	// the writes it would make as BindContext.Intend. An error ends the bind
	// before any plugin wrote anything.
	PreFlight(ctx context.Context, bc *BindContext) (Next, error)
}

// OnAnnotation is a PreBinder that takes part only in binds that ask for it: by an
// annotation <name>.<domain>/… where Asked says, or by its name in
// binder.<domain>/require. A PreBinder that is none takes part in every bind.
type OnAnnotation interface {
	// Asked says where the annotations may stand. It never changes.
	Asked() Source
}

// Source is where a plugin's parameters may stand.
type Source int

const (
	// ByBinding is on the Binding only, that is, a scheduler's plugin sets them.
	ByBinding Source = iota
	// ByBindingOrPod is on the pod as well. The Binding's value of a key wins.
	ByBindingOrPod
)

// Confirmer is a PreBinder that takes a last look before the bind is allowed.
type Confirmer interface {
	// Confirm is called after the PreBind of all plugins, also when its own was
	// skipped, whenever another plugin's PreBind may have taken time. It only
	// reads. An error ends the attempt, and what was prepared is rolled back.
	Confirm(ctx context.Context, bc *BindContext) error
}

// PostBinder is a PreBinder that wants to hear when a bind has come about.
type PostBinder interface {
	// PostBind is called after the pod was seen bound to the node by this attempt,
	// for plugins whose PreBind ran, in the order of PreBind. It is a courtesy:
	// when the process ends before, nobody calls it, unless the plugin is a
	// Recoverer.
	PostBind(ctx context.Context, bc *BindContext)
}

// Recoverer is a PreBinder whose writes say themselves who made them, so that
// what a crash leaves behind can be found and brought to an end. Every PreBinder
// with something to undo should be one.
type Recoverer interface {
	// Marks lists, from the cache, the attempts whose writes stand and were not
	// confirmed by PostBind. One replica at a time asks for it, every few seconds.
	// For each mark whose replica is gone, PostBind or PreBindRollBack is called,
	// with a recovered BindContext; both have to cope with marks that have changed
	// since, and with being called more than once.
	//
	// A plugin that keeps its marks where a tenant can write must treat them as the
	// tenant's data. It bounds how many it returns for one object. A mark only says
	// which attempt to look at; it never decides that something is undone. Before
	// the plugin undoes a write, it checks what the API server guards, or a record in
	// Prebind's own namespace, by the pod's UID.
	Marks(ctx context.Context) ([]Mark, error)
}

// Tidier is a PreBinder that keeps something for as long as a pod runs, which
// nobody tells it the end of.
type Tidier interface {
	// Tidy gives up what belongs to pods that are gone or finished. One replica at a
	// time calls it, every few minutes.
	Tidy(ctx context.Context) error
}

// Mark is what a write says of the attempt that made it.
type Mark struct {
	// Pod and PodUID are the pod that the write was made for. The engine reads the pod by
	// its name and decides by its UID. The name should be one that a tenant cannot write;
	// where there is none, PreBindRollBack undoes nothing that a running pod could use.
	Pod    types.NamespacedName
	PodUID types.UID
	// Node is the one that it was to be bound to. It may be a tenant's data.
	Node string
	// Attempt is BindContext.Attempt.
	Attempt string
}

// BindContextExtender is a PreBinder that fills its extensions first of all.
type BindContextExtender interface {
	// SetupBindContextExtension is called before the first PreFlight of any
	// plugin. It only reads. An error ends the bind.
	SetupBindContextExtension(ctx context.Context, bc *BindContext) error
}

// Next is what a PreFlight without an error asks for.
type Next int

const (
	// Run asks for PreBind to be called.
	Run Next = iota
	// Skip says that this bind needs nothing of the plugin: neither PreBind nor
	// PreBindRollBack is called for it. It is the Skip of kube-scheduler's
	// PreBindPreFlight.
	Skip
)
