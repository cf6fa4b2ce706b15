// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/recovery"
)

// Observer counts the outcomes of attempts and of sweeps.
type Observer interface {
	attempt.Observer
	recovery.Observer
}

// unobserved is an Observer that ignores all calls.
type unobserved struct{}

// AttemptEnded implements Observer.
func (unobserved) AttemptEnded(string) {}

// RolledBack implements Observer.
func (unobserved) RolledBack(string, error) {}

// Swept implements Observer.
func (unobserved) Swept(string, string, error) {}

// Stats are the numbers of what is in progress.
type Stats struct {
	// Attempts by phase, with all of attempt.Phases.
	Attempts map[string]int
	// Holds is how many calls are held, of MaxHolds at most, those of exempt users included.
	Holds, MaxHolds int
}

// Stats returns the present numbers; the caller owns the map.
func (e *Engine) Stats() Stats {
	s := Stats{Attempts: e.attempts.Count()}
	s.Holds, s.MaxHolds = e.held()
	return s
}

// InFlight returns the attempts in progress, the oldest first; the caller owns the slice.
func (e *Engine) InFlight() []attempt.InFlight { return e.attempts.InFlight() }
