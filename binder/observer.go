// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
	// Holds is how many calls are held, of MaxHolds at most, those of exempt users included.
	Holds, MaxHolds int
}

// InFlight is an attempt that is under way in this replica.
type InFlight struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Node      string `json:"node"`
	Attempt   string `json:"attempt"`
	// Phase is one of those of Stats.Attempts.
	Phase string `json:"phase"`
	// Plugin is at work, or was last.
	Plugin string `json:"plugin,omitempty"`
	// WaitsFor is what a plugin waits for, with the object first.
	WaitsFor string `json:"waitsFor,omitempty"`
	// Since is when the attempt began, and Budget how long it may take to prepare.
	Since  metav1.Time     `json:"since"`
	Budget metav1.Duration `json:"budget"`
}

// Replica is the one that works on it.
func (f InFlight) Replica() string { return replicaOf(f.Attempt) }

// InFlight returns the attempts of now, the oldest first; the caller owns the slice.
func (e *Engine) InFlight() []InFlight {
	e.attempts.mu.Lock()
	defer e.attempts.mu.Unlock()
	now := e.o.Clock.Now()
	all := make([]InFlight, 0, len(e.attempts.byKey))
	for _, a := range e.attempts.byKey {
		all = append(all, a.inFlight(now))
	}
	slices.SortFunc(all, func(a, b InFlight) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(a.Attempt, b.Attempt))
	})
	return all
}

// inFlight must be called with attempts.mu held.
func (a *attempt) inFlight(now time.Time) InFlight {
	// Not a.started as it is: the clock may have been stepped since, and whoever reads it
	// knows the time of today.
	since := metav1.NewTime(now.Add(-now.Sub(a.started)))
	f := InFlight{
		Namespace: a.round.bc.Pod.Namespace, Pod: a.round.bc.Pod.Name, Node: a.key.node, Attempt: a.id,
		Phase: phaseNames[a.phase], Plugin: a.pluginName(), Since: since, Budget: metav1.Duration{Duration: a.budget},
	}
	if w := a.round.bc.WaitingFor(); a.phase == preparing && w.For != "" {
		f.WaitsFor = strings.TrimPrefix(w.Object.String()+": "+w.For, ": ")
	}
	return f
}

// phaseNames are the values of Stats.Attempts.
var phaseNames = map[phase]string{preparing: "preparing", prepared: "prepared", failed: "failed", undoing: "undoing"}

// Phases returns the keys of Stats.Attempts in the order of an attempt's life; the
// caller owns the slice.
func Phases() []string {
	return []string{phaseNames[preparing], phaseNames[prepared], phaseNames[failed], phaseNames[undoing]}
}

// Stats returns the numbers of now; the caller owns the map.
func (e *Engine) Stats() Stats {
	s := Stats{Attempts: map[string]int{}}
	s.Holds, s.MaxHolds = e.held()
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
