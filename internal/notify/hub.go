// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package notify delivers changes of objects to calls that wait for them.
package notify

import (
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Hub delivers changes from informers to subscriptions. It is safe for concurrent use. Create
// it with NewHub.
type Hub struct {
	mu   sync.Mutex
	subs map[Ref]map[*Subscription]struct{}
}

// NewHub returns an empty hub.
func NewHub() *Hub { return &Hub{subs: map[Ref]map[*Subscription]struct{}{}} }

// Changed wakes the subscriptions to the object, and those to all objects of its kind.
// It never blocks.
func (h *Hub) Changed(ref Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wake(ref)
	if ref.selection != "" {
		return
	}
	h.wake(Ref{kind: ref.kind})
	h.wake(Ref{kind: ref.kind, namespace: ref.namespace})
}

// Wake wakes the subscriptions to the object, or all calls that wait if it is nil; see framework.Handle.Wake.
func (h *Hub) Wake(o client.Object) {
	if o == nil {
		h.Changed(AllBinds())
		return
	}
	h.Changed(RefTo(o, o.GetNamespace(), o.GetName()))
}

// wake must be called with mu held.
func (h *Hub) wake(ref Ref) {
	for s := range h.subs[ref] {
		select {
		case s.c <- struct{}{}:
		default: // The subscription is already awake and has not looked yet.
		}
	}
}

// Subscribe returns a subscription to the objects. Subscribe before you read the objects, so
// that no change is missed, and close the subscription at the end.
func (h *Hub) Subscribe(refs ...Ref) *Subscription {
	s := &Subscription{hub: h, c: make(chan struct{}, 1), refs: map[Ref]struct{}{}}
	s.Add(refs...)
	return s
}

// Subscription receives changes of its objects. Only Add is safe for concurrent use: a plugin can read in parallel.
type Subscription struct {
	hub  *Hub
	c    chan struct{}
	mu   sync.Mutex
	refs map[Ref]struct{}
}

// C receives once for one or more changes since the last receive.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Size returns about how many bytes the subscription needs.
func (s *Subscription) Size() int { return 128 * len(s.refs) }

// Add subscribes to more objects. It needs no lock of the hub if there is none: a call adds all of its objects in each pass.
func (s *Subscription) Add(refs ...Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		if _, has := s.refs[ref]; !has {
			s.refs[ref] = struct{}{}
			s.hub.add(ref, s)
		}
	}
}

func (h *Hub) add(ref Ref, s *Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs[ref] == nil {
		h.subs[ref] = map[*Subscription]struct{}{}
	}
	h.subs[ref][s] = struct{}{}
}

// Close ends the subscription.
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
