// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package notify wakes those who wait for an object to change. It is what lets
// a PreBind plugin go on within milliseconds of a watch event instead of
// polling.
package framework

import (
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// Key names an object that somebody waits for.
type Key struct {
	// Kind as in a manifest, such as Node.
	Kind string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	Name      string
}

// Hub carries changes from informers to subscriptions. It is safe for
// concurrent use. The zero Hub is not usable; see NewHub.
type Hub struct {
	mu   sync.Mutex
	subs map[Key]map[*Subscription]struct{}
}

// NewHub returns an empty hub.
func NewHub() *Hub { return &Hub{subs: map[Key]map[*Subscription]struct{}{}} }

// Informer is the part of an informer that the hub needs.
type Informer interface {
	AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
}

// Attach makes every change that the informer sees, additions and deletions
// included, wake the subscriptions to (kind, namespace, name). The informer's
// store already holds the change when they wake.
func (h *Hub) Attach(kind string, informer Informer) error {
	changed := func(object any) {
		name, err := cache.DeletionHandlingObjectToName(object)
		if err == nil {
			h.Changed(Key{Kind: kind, Namespace: name.Namespace, Name: name.Name})
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

// Changed wakes the subscriptions to the key. It never blocks.
func (h *Hub) Changed(key Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs[key] {
		select {
		case s.c <- struct{}{}:
		default: // It has been woken already and will look at everything.
		}
	}
}

// Subscribe returns a subscription to the keys. Subscribe first and look at the
// objects then, so that no change falls in between. Close it in the end.
func (h *Hub) Subscribe(keys ...Key) *Subscription {
	s := &Subscription{hub: h, c: make(chan struct{}, 1), keys: map[Key]struct{}{}}
	s.Add(keys...)
	return s
}

// Subscription is woken by changes of its keys. One goroutine uses it.
type Subscription struct {
	hub  *Hub
	c    chan struct{}
	keys map[Key]struct{}
}

// C receives once for one or more changes since the last receive.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Add subscribes to more keys; those it has already change nothing.
func (s *Subscription) Add(keys ...Key) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for _, key := range keys {
		if s.hub.subs[key] == nil {
			s.hub.subs[key] = map[*Subscription]struct{}{}
		}
		s.hub.subs[key][s] = struct{}{}
		s.keys[key] = struct{}{}
	}
}

// Close ends the subscription; nothing of it stays in the hub.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for key := range s.keys {
		delete(s.hub.subs[key], s)
		if len(s.hub.subs[key]) == 0 {
			delete(s.hub.subs, key)
		}
	}
}
