// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Hub carries changes from informers to subscriptions. It is safe for
// concurrent use. The zero Hub is not usable; see NewHub.
type Hub struct {
	mu   sync.Mutex
	subs map[Ref]map[*Subscription]struct{}
}

// NewHub returns an empty hub.
func NewHub() *Hub { return &Hub{subs: map[Ref]map[*Subscription]struct{}{}} }

// Informer is the part of an informer that the hub needs.
type Informer interface {
	AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
}

// Attach makes every change that the informer of the example's type sees, additions and
// deletions included, wake the subscriptions to the object. The informer's store already
// holds the change when they wake.
func (h *Hub) Attach(example client.Object, informer Informer) error {
	kind := KindOf(example)
	changed := func(object any) {
		name, err := cache.DeletionHandlingObjectToName(object)
		if err == nil {
			h.Changed(Ref{kind: kind, namespace: name.Namespace, name: name.Name})
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, object any) { changed(object) },
		DeleteFunc: changed,
	})
	if err != nil {
		return fmt.Errorf("watching %s objects: %w", kind, err)
	}
	return nil
}

// Changed wakes the subscriptions to the object, and those to all objects of its kind.
// It never blocks.
func (h *Hub) Changed(ref Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wake(ref)
	h.wake(Ref{kind: ref.kind})
	if ref.namespace != "" {
		h.wake(Ref{kind: ref.kind, namespace: ref.namespace})
	}
}

// wake must be called with mu held.
func (h *Hub) wake(ref Ref) {
	for s := range h.subs[ref] {
		select {
		case s.c <- struct{}{}:
		default: // It has been woken already and will look at everything.
		}
	}
}

// Subscribe returns a subscription to the objects. Subscribe first and look at the
// objects then, so that no change is missed: Await does so. Close it in the end.
func (h *Hub) Subscribe(refs ...Ref) *Subscription {
	s := &Subscription{hub: h, c: make(chan struct{}, 1), refs: map[Ref]struct{}{}}
	s.Add(refs...)
	return s
}

// Subscription is woken by changes of its objects. One goroutine uses it.
type Subscription struct {
	hub  *Hub
	c    chan struct{}
	refs map[Ref]struct{}
}

// C receives once for one or more changes since the last receive.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Add subscribes to more objects; those that it has already make no difference.
func (s *Subscription) Add(refs ...Ref) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, ref := range refs {
		if s.hub.subs[ref] == nil {
			s.hub.subs[ref] = map[*Subscription]struct{}{}
		}
		s.hub.subs[ref][s] = struct{}{}
		s.refs[ref] = struct{}{}
	}
}

// Close ends the subscription; nothing of it stays in the hub.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for ref := range s.refs {
		delete(s.hub.subs[ref], s)
		if len(s.hub.subs[ref]) == 0 {
			delete(s.hub.subs, ref)
		}
	}
}
