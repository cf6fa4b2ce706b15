// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"hash/maphash"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// maxExempt is the maximum number of calls held for clients whose calls the API server exempts from its concurrency limits. Such
// a call costs only memory and a connection, of which the server accepts 1,024: a replica that held 512 had 97 MB.
const maxExempt = 512

// maxHeld is the maximum size of the Bindings of one namespace and of the pods that their calls have read themselves, in bytes. Pods of the
// cache, which has no large ones, are shared.
const maxHeld = 16 << 20

// seats counts the calls that are held in this replica, and the memory of all calls by namespace. It is safe for concurrent use.
type seats struct {
	mu              sync.Mutex
	regular, exempt int
	size            map[string]int
	// isExempt returns whether the API server exempts the user from its concurrency limits. It
	// may be nil.
	isExempt func(authenticationv1.UserInfo) bool
}

func (s *seats) setExempt(is func(authenticationv1.UserInfo) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isExempt = is
}

// take takes a seat if the user's kind of calls has one left. It returns the function that gives the seat back, or nil.
func (s *seats) take(user authenticationv1.UserInfo, maxHolds int) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, most := &s.regular, maxHolds
	if s.isExempt != nil && s.isExempt(user) {
		held, most = &s.exempt, maxExempt
	}
	if *held >= most {
		return nil
	}
	*held++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		*held--
	}
}

// grow adds to the memory of the namespace, if it has that much left. A negative size gives it back.
func (s *seats) grow(namespace string, size int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > 0 && s.size[namespace]+size > maxHeld {
		return false
	}
	if s.size == nil {
		s.size = map[string]int{}
	}
	if s.size[namespace] += size; s.size[namespace] == 0 {
		delete(s.size, namespace)
	}
	return true
}

// count returns how many calls are held, and how many can be.
func (s *seats) count(maxHolds int) (held, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isExempt != nil {
		maxHolds += maxExempt
	}
	return s.regular + s.exempt, maxHolds
}

// passesAtOnce is how many passes of a namespace run at the same time.
const passesAtOnce = 2

// turns limits the processor time and memory of a namespace: one change by a tenant wakes all of its held calls. A few namespaces can share a
// limit.
type turns struct {
	seed maphash.Seed
	of   [1024]chan struct{}
}

func newTurns() turns {
	t := turns{seed: maphash.MakeSeed()}
	for i := range t.of {
		t.of[i] = make(chan struct{}, passesAtOnce)
	}
	return t
}

// take returns the function that ends a turn, and whether it had to wait for the turn. If the context ends first, the result of the pass
// does not count.
func (t *turns) take(ctx context.Context, namespace string) (end func(), waited bool) {
	turn := t.of[maphash.String(t.seed, namespace)%uint64(len(t.of))]
	end = func() { <-turn }
	select {
	case turn <- struct{}{}:
		return end, false
	default:
	}
	select {
	case turn <- struct{}{}:
		return end, true
	case <-ctx.Done():
		return func() {}, true
	}
}
