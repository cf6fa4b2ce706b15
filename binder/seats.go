// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"sync"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

// exemptFactor is how many times Settings.MaxHolds calls are held for clients whose calls
// the API server exempts from its concurrency limits. Such a call costs memory only: a
// replica that held 512 had 97 MB.
const exemptFactor = 16

// seating holds the seats of a replica. It is safe for concurrent use.
type seating struct {
	regular, exempt seats
	// isExempt returns whether the API server exempts the user from its concurrency limits. It
	// may be nil.
	isExempt atomic.Pointer[func(authenticationv1.UserInfo) bool]
}

// of returns the seats for a call of the user, and how many there are.
func (s *seating) of(user authenticationv1.UserInfo, maxHolds int) (*seats, int) {
	if is := s.isExempt.Load(); is != nil && (*is)(user) {
		return &s.exempt, exemptFactor * maxHolds
	}
	return &s.regular, maxHolds
}

// count returns how many calls are held, and how many can be.
func (s *seating) count(maxHolds int) (held, most int) {
	if s.isExempt.Load() != nil {
		maxHolds += exemptFactor * maxHolds
	}
	return s.regular.count() + s.exempt.count(), maxHolds
}

// maxHeld is the maximum size of the large pods and Bindings of one namespace that held calls keep in memory, in bytes. Pods of the
// cache, which are smaller than maxCached, are shared.
const (
	maxHeld   = 16 << 20
	maxCached = 64 << 10
)

// seats counts the calls that are held in this replica, and the memory that they need by namespace. It is safe for concurrent use.
type seats struct {
	mu   sync.Mutex
	held int
	size map[string]int
}

// take takes a seat if fewer than most are taken and the namespace has memory left, and returns whether it did.
func (s *seats) take(most int, namespace string, size int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held >= most || size > 0 && s.size[namespace]+size > maxHeld {
		return false
	}
	s.held++
	if s.size == nil {
		s.size = map[string]int{}
	}
	s.size[namespace] += size
	return true
}

// leave gives a seat back.
func (s *seats) leave(namespace string, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held--
	if s.size[namespace] -= size; s.size[namespace] == 0 {
		delete(s.size, namespace)
	}
}

// heldSize returns the memory that a held call needs only for itself, in bytes.
func heldSize(pod *corev1.Pod, b *corev1.Binding) int {
	size := b.Size()
	if podSize := pod.Size(); podSize > maxCached {
		size += podSize
	}
	return size
}

// count is how many seats are taken.
func (s *seats) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}
