// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"time"
)

// BindLook is a Look for one bind. It uses BindContext.Now as the time, and must not write.
// It may call BindContext.Annotate, SetAnnotation, SetLabel, Warn, Found and Has. It reads through the reader only, not
// through Handle.Live: Await wakes it only for objects that it has read through the reader,
// and the first look of every bind should cost no request to the API server.
type BindLook func(ctx context.Context, reader Reader, bc *BindContext) (Waiting, error)

// Waiter is a PreBinder that only waits. Registration.New can return it as it is.
//
// A Waiter runs its look in SetupBindContextExtension, returns the result from PreFlight,
// and runs AwaitReady in PreBind. If the look returns the zero Waiting at once, the engine
// skips PreBind, and allows the bind based on the cache. A bind that has waited is allowed
// only after a look through the live reader, which costs one request to the API server for
// the pod, one for the node, and one for each object that the look reads.
type Waiter struct {
	name   string
	handle Handle
	look   BindLook
	wakes  []Ref
}

// NewWaiter returns the plugin with the name.
func NewWaiter(name string, h Handle, look BindLook) *Waiter {
	return &Waiter{name: name, handle: h, look: look}
}

// WokenBy makes changes of these objects wake the look, in addition to those that it reads. It returns the
// Waiter. Call it before the first bind.
func (w *Waiter) WokenBy(refs ...Ref) *Waiter {
	w.wakes = append(w.wakes, refs...)
	return w
}

// OnAnnotation returns the plugin as an OnRequest, limited to binds that request it by an
// annotation on these objects.
func (w *Waiter) OnAnnotation(source Source) PreBinder { return requestedWaiter{w, source} }

type requestedWaiter struct {
	*Waiter
	source Source
}

// RequestedBy implements OnRequest.
func (w requestedWaiter) RequestedBy() Source { return w.source }

// looked is the result of a look.
type looked struct {
	waiting Waiting
	err     error
}

func (w *Waiter) extension() ExtensionKey[looked] { return NewExtensionKey[looked](w.name) }

// Name implements PreBinder.
func (w *Waiter) Name() string { return w.name }

// SetupBindContextExtension implements BindContextExtender.
func (w *Waiter) SetupBindContextExtension(ctx context.Context, reader Reader, bc *BindContext) error {
	waiting, err := w.look(ctx, reader, bc)
	w.extension().Set(bc, looked{waiting: waiting, err: err})
	return nil
}

// PreFlight implements PreFlighter.
func (w *Waiter) PreFlight(bc *BindContext) (Next, error) {
	result, err := w.extension().Get(bc)
	switch {
	case err != nil:
		return Run, err
	case result.err != nil:
		return Run, result.err
	case result.waiting == Waiting{}:
		return Skip, nil
	}
	bc.ExpectWait(result.waiting)
	return Run, nil
}

// PreBind implements PreBinder.
func (w *Waiter) PreBind(ctx context.Context, bc *BindContext) error {
	return awaitReady(ctx, w.handle, bc, w, true, w.wakes...)
}

// WaitAtMost returns the wait, limited to the duration since BindContext.Since. After that
// it returns a KindRefuse. An earlier Until of the wait is kept. Tenants write the pod and its
// annotations, so a plugin must bound a limit that it reads there.
func (bc *BindContext) WaitAtMost(limit time.Duration, w Waiting) (Waiting, error) {
	if bc.Now.Sub(bc.Since) >= limit {
		return Waiting{}, Refuse(w.Object, "still waiting for %s after %s", w.For, limit).Advise("choose another node")
	}
	if end := bc.Since.Add(limit); w.Until.IsZero() || end.Before(w.Until) {
		w.Until = end
	}
	return w, nil
}
