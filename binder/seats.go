// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/prebind/prebind/binder/pacing"
)

// exemptFactor is how many times Settings.MaxHolds calls are held for clients whose calls
// the API server exempts from its concurrency limits. Such a call costs memory only: a
// replica that held 512 had 97 MB.
const exemptFactor = 16

// Exempt sets which users' Bindings the API server exempts from its concurrency limits. A
// held call of such a user takes no seat of the API server, so more of them are held. The
// function must be safe for concurrent use; nil means nobody.
func (e *Engine) Exempt(who func(authenticationv1.UserInfo) bool) {
	e.isExempt.Store(&who)
}

// seatsFor returns the seats for the call, and how many there are.
func (e *Engine) seatsFor(c *call) (*seats, int) {
	if who := e.isExempt.Load(); who != nil && *who != nil && (*who)(c.User) {
		return &e.exempt, exemptFactor * c.settings.MaxHolds
	}
	return &e.seats, c.settings.MaxHolds
}

// held returns how many calls are held, and how many can be.
func (e *Engine) held() (holds, most int) {
	most = e.settings.Load().MaxHolds
	if who := e.isExempt.Load(); who != nil && *who != nil {
		most += exemptFactor * most
	}
	return e.seats.count() + e.exempt.count(), most
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
func (s *seats) take(call pacing.Occupant, most int, now time.Time) *occupant {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &occupant{Occupant: call, gone: make(chan struct{})}
	if len(s.held) < most {
		s.held = append(s.held, o)
		return o
	}
	taken := make([]pacing.Occupant, 0, len(s.held))
	for _, o := range s.held {
		taken = append(taken, o.Occupant)
	}
	leaves, ok := pacing.Displace(taken, call, most, now)
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
