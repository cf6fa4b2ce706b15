// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"sync"
	"time"

	"github.com/prebind/prebind/binder/pacing"
)

// seats are the calls that are held in this replica, MaxHolds at most. It is safe for
// concurrent use.
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
	taken := make([]pacing.Occupant, 0, len(s.held))
	for _, o := range s.held {
		taken = append(taken, o.Occupant)
	}
	leaves, ok := pacing.Displace(taken, call, most, now)
	if !ok {
		return nil
	}
	if leaves >= 0 {
		close(s.held[leaves].gone)
		s.held = slices.Delete(s.held, leaves, leaves+1)
	}
	o := &occupant{Occupant: call, gone: make(chan struct{})}
	s.held = append(s.held, o)
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
