// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/prebind/prebind/binder/pacing"
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

// seats are calls that are held in this replica. It is safe for concurrent use.
type seats struct {
	mu   sync.Mutex
	held []*occupant
}

// occupant is a call that is held.
type occupant struct {
	pacing.Occupant
	// gone is closed when another call gets its seat.
	gone chan struct{}
}

// take gives the call a seat, that of another call if need be (see pacing.Displace), or
// returns nil.
func (s *seats) take(newcomer pacing.Occupant, most int, now time.Time) *occupant {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &occupant{Occupant: newcomer, gone: make(chan struct{})}
	if len(s.held) < most {
		s.held = append(s.held, o)
		return o
	}
	taken := make([]pacing.Occupant, 0, len(s.held))
	for _, o := range s.held {
		taken = append(taken, o.Occupant)
	}
	leaves, ok := pacing.Displace(taken, newcomer, most, now)
	if !ok {
		return nil
	}
	close(s.held[leaves].gone)
	s.held[leaves] = o
	return o
}

// leave gives the seat back. It may be called of one that is gone.
func (s *seats) leave(o *occupant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = slices.DeleteFunc(s.held, func(other *occupant) bool { return other == o })
}

// count is how many seats are taken.
func (s *seats) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
}
