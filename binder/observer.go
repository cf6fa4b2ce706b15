// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

// Observer is told what becomes of attempts. Its methods are called concurrently,
// and must not block.
type Observer interface {
	// AttemptEnded is called with what became of an attempt that had prepared its
	// bind: "bound", "bound by another attempt", or "not bound".
	AttemptEnded(outcome string)
	// RolledBack is called when a plugin's PreBindRollBack has come to its end: err is
	// what was left undone, or nil.
	RolledBack(plugin string, err error)
	// Swept is called for what an ended attempt left behind and the sweep brought to
	// an end: verdict is "commit" or "roll back", err why it has to be tried again, or
	// nil.
	Swept(plugin, verdict string, err error)
}

// unobserved is the Observer of an engine that nobody observes.
type unobserved struct{}

// AttemptEnded implements Observer.
func (unobserved) AttemptEnded(string) {}

// RolledBack implements Observer.
func (unobserved) RolledBack(string, error) {}

// Swept implements Observer.
func (unobserved) Swept(string, string, error) {}

// Stats are the numbers of what is under way.
type Stats struct {
	// Attempts by phase: "preparing", "prepared" (followed to its outcome), "failed"
	// (kept for a client that is between two calls) and "undoing". All are there.
	Attempts map[string]int
	// Holds is how many calls are kept waiting, of MaxHolds at most.
	Holds, MaxHolds int
}

// phaseNames are the values of Stats.Attempts.
var phaseNames = map[phase]string{preparing: "preparing", prepared: "prepared", failed: "failed", undoing: "undoing"}

// Stats returns the numbers of now; the caller owns the map.
func (e *Engine) Stats() Stats {
	s := Stats{Attempts: map[string]int{}, Holds: len(e.holds), MaxHolds: cap(e.holds)}
	for _, name := range phaseNames {
		s.Attempts[name] = 0
	}
	e.attempts.mu.Lock()
	defer e.attempts.mu.Unlock()
	for _, a := range e.attempts.byKey {
		s.Attempts[phaseNames[a.phase]]++
	}
	return s
}
