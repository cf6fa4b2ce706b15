// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"cmp"
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Look reads the current state through the reader. It returns what to wait for, the zero
// Waiting if there is nothing to wait for, or an error that ends the wait.
type Look func(ctx context.Context, reader Reader) (Waiting, error)

// Await calls look until there is nothing to wait for, and returns nil then.
//
// Await looks again when an object changes that look has read through the reader, or one of
// the given objects, and at Waiting.Until. It subscribes to an object before look reads it,
// so that no change is missed. It looks at the cache. If look returns an error, and at
// Waiting.Until, it looks again through the live reader, and only that result counts. Await
// reports what it waits for with BindContext.ReportWait.
//
// When the context ends, Await returns the context's cause.
func Await(ctx context.Context, h Handle, bc *BindContext, look Look, objects ...Ref) error {
	changes := h.Changes.Subscribe(objects...)
	defer changes.Close()
	cached := subscribing{Reader: h.Cached, to: changes}
	live := subscribing{Reader: h.Live, to: changes}
	due := false
	for {
		waiting, err := Waiting{}, error(nil)
		if !due {
			waiting, err = look(ctx, cached)
		}
		if due || err != nil && ctx.Err() == nil {
			waiting, err = look(ctx, live)
		}
		if err != nil || waiting == (Waiting{}) {
			return err
		}
		bc.ReportWait(waiting)
		if due, err = sleep(ctx, h.Clock, changes, waiting.Until); err != nil {
			return err
		}
	}
}

// sleep returns at the next change, or at the given time, if any. due reports the latter.
func sleep(ctx context.Context, c clock.WithDelayedExecution, changes *Subscription, until time.Time) (due bool, err error) {
	var over <-chan time.Time
	if !until.IsZero() {
		timer := c.NewTimer(until.Sub(c.Now()))
		defer timer.Stop()
		over = timer.C()
	}
	select {
	case <-changes.C():
		return false, nil
	case <-over:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// AwaitReady is the PreBind of a plugin that only waits. It repeats SetupBindContextExtension
// and PreFlight, as Await repeats a Look, until PreFlight skips. It reports the first wait
// that PreFlight records with BindContext.ExpectWait. Each repetition gets its own context with
// the current pod and node. The extensions, annotations, labels and warnings of the last one are copied to bc.
func AwaitReady(ctx context.Context, h Handle, bc *BindContext, p PreFlighter) error {
	return awaitReady(ctx, h, bc, p, false)
}

// errUnconfirmed makes Await look again through the live reader.
var errUnconfirmed = errors.New("the API server has not confirmed that the wait is over")

// awaitReady is AwaitReady. If confirm is set, the wait is over only when the API server
// confirms it. Changes of the given objects also wake it.
func awaitReady(ctx context.Context, h Handle, bc *BindContext, p PreFlighter, confirm bool, objects ...Ref) error {
	since := h.Clock.Now()
	return Await(ctx, h, bc, func(ctx context.Context, reader Reader) (Waiting, error) {
		pod, node, err := Present(ctx, reader, bc)
		if err != nil {
			return Waiting{}, err
		}
		now := bc.again(pod, node, h.Clock.Now(), since, isLive(reader, h))
		if extender, ok := p.(BindContextExtender); ok {
			if err := extender.SetupBindContextExtension(ctx, reader, now); err != nil {
				return Waiting{}, err
			}
		}
		next, err := p.PreFlight(now)
		switch waits := now.ExpectedWaits(); {
		case err != nil:
			return Waiting{}, err
		case next != Skip && len(waits) > 0:
			return waits[0], nil
		case confirm && h.Live != h.Cached && !now.Live:
			return Waiting{}, cmp.Or(context.Cause(ctx), errUnconfirmed)
		}
		bc.adopt(now)
		return Waiting{}, nil
	}, objects...)
}

// isLive returns whether the reader of a look is the live one.
func isLive(reader Reader, h Handle) bool {
	s, ok := reader.(subscribing)
	return ok && s.Reader == h.Live && h.Live != h.Cached
}

// Present reads the pod and the node of the bind. It returns an error if the pod can no longer
// be bound, or if the node does not exist or was recreated.
func Present(ctx context.Context, reader Reader, bc *BindContext) (*corev1.Pod, *corev1.Node, error) {
	about := Object{Kind: "Pod", Namespace: bc.Pod.Namespace, Name: bc.Pod.Name}
	pod, err := Get(ctx, reader, &corev1.Pod{}, bc.Pod.Namespace, bc.Pod.Name)
	if err != nil {
		return nil, nil, err
	}
	if at := WhereaboutsOf(pod, bc.Pod.UID, bc.Node.Name); at != Pending {
		return nil, nil, Stale(about, "the pod is %s", at).Advise("do not retry")
	}
	about = Object{Kind: "Node", Name: bc.Node.Name}
	node, err := Get(ctx, reader, &corev1.Node{}, "", bc.Node.Name)
	switch {
	case err != nil:
		return nil, nil, err
	case node == nil:
		return nil, nil, Refuse(about, "the node does not exist").Advise("choose another node")
	case node.UID != bc.Node.UID:
		return nil, nil, Refuse(about, "the node was deleted and recreated").Advise("schedule the pod again")
	}
	return pod, node, nil
}

// Get reads an object into the given one and returns it, or nil if there is no such object. It
// also returns nil for an invalid name, which a client answers with an error. Its errors are
// those of this package, about the object. Objects from the cache are shared: do not change
// them.
func Get[T interface {
	client.Object
	comparable
}](ctx context.Context, reader Reader, into T, namespace, name string) (T, error) {
	var none T
	if name == "" || len(content.IsPathSegmentName(name)) > 0 {
		return none, nil
	}
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, FromAPI(Object{Kind: KindOf(into), Namespace: namespace, Name: name}, "reading it", err)
	}
	return into, nil
}

// subscribing subscribes to every object before it reads it.
type subscribing struct {
	Reader
	to *Subscription
}

// Get implements client.Reader.
func (s subscribing) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	s.to.Add(Ref{kind: KindOf(into), namespace: key.Namespace, name: key.Name})
	return s.Reader.Get(ctx, key, into, opts...)
}

// List implements client.Reader. It subscribes to all objects of the kind, in the
// namespace if the options name one, or to the objects of a Selection with the value.
func (s subscribing) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if selected, ok := SelectedBy(opts); ok {
		s.to.Add(selected.Changed(selected.Value))
		return s.Reader.List(ctx, into, opts...)
	}
	options := client.ListOptions{}
	options.ApplyOptions(opts)
	s.to.Add(Ref{kind: KindOf(into), namespace: options.Namespace})
	return s.Reader.List(ctx, into, opts...)
}
