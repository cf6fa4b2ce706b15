// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

// exemptFactor is how many times Settings.MaxHolds calls are held for clients whose calls
// the API server exempts from its concurrency limits. Such a call costs memory only: a
// replica that held 512 had 97 MB.
const exemptFactor = 16

// maxHeld is the maximum size of the large pods and Bindings that held calls keep in memory, in bytes. Pods of the cache, which are
// smaller than maxCached, are shared.
const (
	maxHeld   = 64 << 20
	maxCached = 64 << 10
)

// seats counts the calls that are held in this replica, and the memory that they need. It is safe for concurrent use.
type seats struct {
	mu              sync.Mutex
	regular, exempt int
	size            int
	// isExempt returns whether the API server exempts the user from its concurrency limits. It
	// may be nil.
	isExempt func(authenticationv1.UserInfo) bool
}

func (s *seats) setExempt(is func(authenticationv1.UserInfo) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isExempt = is
}

// take takes a seat if the user's kind of calls has one left, and if there is memory left for the size. It returns the function that
// gives the seat back, or nil.
func (s *seats) take(user authenticationv1.UserInfo, maxHolds, size int) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, most := &s.regular, maxHolds
	if s.isExempt != nil && s.isExempt(user) {
		held, most = &s.exempt, exemptFactor*maxHolds
	}
	if *held >= most || size > 0 && s.size+size > maxHeld {
		return nil
	}
	*held++
	s.size += size
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		*held--
		s.size -= size
	}
}

// count returns how many calls are held, and how many can be.
func (s *seats) count(maxHolds int) (held, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isExempt != nil {
		maxHolds += exemptFactor * maxHolds
	}
	return s.regular + s.exempt, maxHolds
}

// heldSize returns the memory that a held call needs only for itself, in bytes.
func heldSize(pod *corev1.Pod, b *corev1.Binding) int {
	size := b.Size()
	if podSize := pod.Size(); podSize > maxCached {
		size += podSize
	}
	return size
}
