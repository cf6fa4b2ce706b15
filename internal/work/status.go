// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The phases of the work on a bind. They are stable: metrics, the debug endpoint and 'prebind
// status' show them.
const (
	Preparing   = "preparing"
	Allowed     = "prepared"
	RollingBack = "rollback"
	// Waiting is the phase of a bind that waits, and for which no plugin has written.
	Waiting = "waiting"
)

// Phases returns the names of the phases in order. The caller owns the slice.
func Phases() []string { return []string{Preparing, Allowed, RollingBack} }

// InFlight is one bind in progress in this replica.
type InFlight struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	// UID is that of the pod.
	UID  types.UID `json:"uid,omitempty"`
	Node string    `json:"node"`
	// Attempt is empty if no plugin has written for the bind.
	Attempt string `json:"attempt,omitempty"`
	// Phase is one of Phases, or Waiting.
	Phase string `json:"phase"`
	// Plugin waits, or has written last.
	Plugin string `json:"plugin,omitempty"`
	// WaitsFor is what the bind waits for, with the object first.
	WaitsFor string `json:"waitsFor,omitempty"`
	// Since is the time of the first call or, after the bind was allowed, of the first write. Budget is the time that a bind has that
	// waits.
	Since  metav1.Time     `json:"since"`
	Budget metav1.Duration `json:"budget,omitzero"`
}

// InFlight returns the work of this replica by bind. The caller owns the map.
func (s *Set) InFlight() map[Key]InFlight {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Clock.Now()
	all := map[Key]InFlight{}
	for key, e := range s.entries {
		f := InFlight{
			Namespace: e.pod.Namespace, Pod: e.pod.Name, UID: e.key.Pod, Node: e.key.Node, Attempt: e.id, Phase: e.phase(now),
			// Relative to now, because the wall clock may have changed since.
			Since: metav1.NewTime(now.Add(-now.Sub(e.began))),
		}
		for _, p := range e.writers {
			f.Plugin = p.Name()
		}
		all[key] = f
	}
	return all
}

// phase must be called with Set.mu held.
func (e *Entry) phase(now time.Time) string {
	switch {
	case e.closed || e.cause != nil:
		return RollingBack
	case e.bindable(now):
		return Allowed
	default:
		return Preparing
	}
}
