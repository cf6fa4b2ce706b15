// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InFlight is an attempt in progress in this replica.
type InFlight struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Node      string `json:"node"`
	Attempt   string `json:"attempt"`
	// Phase is one of Phases.
	Phase string `json:"phase"`
	// Plugin is at work, or was last.
	Plugin string `json:"plugin,omitempty"`
	// WaitsFor is what a plugin waits for, with the object first.
	WaitsFor string `json:"waitsFor,omitempty"`
	// Since is when the attempt began, and Budget how long it may take to prepare.
	Since  metav1.Time     `json:"since"`
	Budget metav1.Duration `json:"budget"`
}

// Replica returns the replica of the attempt.
func (f InFlight) Replica() string { return ReplicaOf(f.Attempt) }

// phaseNames are stable: metrics, the debug endpoint and 'prebind status' show them.
var phaseNames = map[Phase]string{Preparing: "preparing", Prepared: "prepared", Failed: "failed", RollingBack: "undoing"}

// Phases returns the names of the phases in the order of an attempt's life: "preparing",
// "prepared" (followed to its outcome), "failed" (kept for a client that is between two
// calls) and "undoing". The caller owns the slice.
func Phases() []string {
	return []string{phaseNames[Preparing], phaseNames[Prepared], phaseNames[Failed], phaseNames[RollingBack]}
}

// InFlight returns the attempts in progress, the oldest first; the caller owns the slice.
func (s *Set) InFlight() []InFlight {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Clock.Now()
	all := make([]InFlight, 0, len(s.byKey))
	for _, a := range s.byKey {
		all = append(all, a.inFlight(now))
	}
	slices.SortFunc(all, func(a, b InFlight) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(a.Attempt, b.Attempt))
	})
	return all
}

// inFlight must be called with Set.mu held.
func (a *Attempt) inFlight(now time.Time) InFlight {
	// Relative to now, because the wall clock may have changed since the start.
	since := metav1.NewTime(now.Add(-now.Sub(a.started)))
	f := InFlight{
		Namespace: a.round.Context.Pod.Namespace, Pod: a.round.Context.Pod.Name, Node: a.key.Node, Attempt: a.id,
		Phase: phaseNames[a.phase], Plugin: a.pluginName(), Since: since, Budget: metav1.Duration{Duration: a.budget},
	}
	if w := a.round.Context.WaitingFor(); a.phase == Preparing && w.For != "" {
		f.WaitsFor = strings.TrimPrefix(w.Object.String()+": "+w.For, ": ")
	}
	return f
}

// Count returns the number of attempts by phase, with all of Phases; the caller owns the
// map.
func (s *Set) Count() map[string]int {
	count := map[string]int{}
	for _, name := range phaseNames {
		count[name] = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.byKey {
		count[phaseNames[a.phase]]++
	}
	return count
}
