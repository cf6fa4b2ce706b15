// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
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

// seats counts the calls that are held in this replica. It is safe for concurrent use.
type seats struct {
	mu   sync.Mutex
	held int
}

// take takes a seat if fewer than most are taken, and returns whether it did.
func (s *seats) take(most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held >= most {
		return false
	}
	s.held++
	return true
}

// leave gives a seat back.
func (s *seats) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held--
}

// count is how many seats are taken.
func (s *seats) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}
