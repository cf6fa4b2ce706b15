// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The phases of the work on a bind. They are stable: metrics, the debug endpoint and 'prebind
// status' show them.
const (
	Preparing   = "preparing"
	Allowed     = "prepared"
	RollingBack = "undoing"
)

// Phases returns the names of the phases in order. The caller owns the slice.
func Phases() []string { return []string{Preparing, Allowed, RollingBack} }

// InFlight is the work on one bind in this replica.
type InFlight struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Node      string `json:"node"`
	Attempt   string `json:"attempt"`
	// Phase is one of Phases.
	Phase string `json:"phase"`
	// Plugins have written, in order.
	Plugins []string `json:"plugins,omitempty"`
	// Since is the time of the first write.
	Since metav1.Time `json:"since"`
}

// InFlight returns the work of this replica, the oldest first. The caller owns the slice.
func (s *Set) InFlight() []InFlight {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Clock.Now()
	all := make([]InFlight, 0, len(s.byKey))
	for _, e := range s.byKey {
		f := InFlight{
			Namespace: e.pod.Namespace, Pod: e.pod.Name, Node: e.key.Node, Attempt: e.id, Phase: e.phase(),
			// Relative to now, because the wall clock may have changed since.
			Since: metav1.NewTime(now.Add(-now.Sub(e.began))),
		}
		for _, w := range e.writers {
			f.Plugins = append(f.Plugins, w.plugin.Name())
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b InFlight) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(a.Attempt, b.Attempt))
	})
	return all
}

// Count returns the number of binds by phase, with all of Phases. The caller owns the map.
func (s *Set) Count() map[string]int {
	count := map[string]int{Preparing: 0, Allowed: 0, RollingBack: 0}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byKey {
		count[e.phase()]++
	}
	return count
}

// phase must be called with Set.mu held.
func (e *Entry) phase() string {
	switch {
	case e.closed || e.cause != nil:
		return RollingBack
	case !e.allowed.IsZero():
		return Allowed
	default:
		return Preparing
	}
}
