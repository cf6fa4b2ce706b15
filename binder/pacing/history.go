// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package pacing

import (
	"slices"
	"sync"
	"time"
)

const (
	// remember is the number of recent waits of a kind that a History keeps.
	remember = 512
	// kinds is the number of kinds that a History keeps.
	kinds = 1000
	// shortest is the shortest wait that is kept: a shorter one ends before any client
	// could call again.
	shortest = time.Second
)

// Kind groups comparable waits. The namespace is part of it, so that the waits of one tenant do
// not affect another one.
type Kind struct {
	Namespace string
	// Plugins are the names of the plugins with work to do, in order.
	Plugins string
}

// History remembers how long waits take, by kind, in bounded memory. It is safe for
// concurrent use.
type History struct {
	mu   sync.Mutex
	of   map[Kind]*waits
	used []Kind // Least recently begun first.
}

// waits are those of one kind.
type waits struct {
	// ended is a ring of durations, next the place of the next one.
	ended []time.Duration
	next  int
	// waiting are those in progress, the oldest first.
	waiting []*InProgress
}

// InProgress is a wait that has not ended. It belongs to its History.
type InProgress struct {
	kind  Kind
	began time.Time
}

// NewHistory returns an empty History.
func NewHistory() *History { return &History{of: map[Kind]*waits{}} }

// Begin records a wait in progress. The caller ends it with End.
func (h *History) Begin(kind Kind, began time.Time) *InProgress {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.of[kind]
	if w == nil {
		w = &waits{}
		h.of[kind] = w
		h.used = append(h.used, kind)
		h.forget()
	}
	p := &InProgress{kind: kind, began: began}
	i, _ := slices.BinarySearchFunc(w.waiting, began, func(p *InProgress, t time.Time) int { return p.began.Compare(t) })
	w.waiting = slices.Insert(w.waiting, i, p)
	return p
}

// forget drops the oldest kinds without a wait in progress if there are too many kinds.
func (h *History) forget() {
	if len(h.used) <= kinds {
		return
	}
	h.used = slices.DeleteFunc(h.used, func(k Kind) bool {
		if len(h.of) <= kinds/2 || len(h.of[k].waiting) > 0 {
			return false
		}
		delete(h.of, k)
		return true
	})
}

// End records the end of the wait. Only a wait that ended with its event counts for others.
func (h *History) End(p *InProgress, now time.Time, event bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.of[p.kind]
	w.waiting = slices.DeleteFunc(w.waiting, func(other *InProgress) bool { return other == p })
	took := now.Sub(p.began)
	if !event || took < shortest {
		return
	}
	if len(w.ended) < remember {
		w.ended = append(w.ended, took)
		return
	}
	w.ended[w.next] = took
	w.next = (w.next + 1) % remember
}

// Past returns the known waits of the kind. The caller owns it.
func (h *History) Past(kind Kind, now time.Time) Past {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.of[kind]
	if w == nil {
		return Past{}
	}
	p := Past{Ended: slices.Sorted(slices.Values(w.ended)), Waiting: make([]time.Duration, 0, len(w.waiting))}
	for _, other := range slices.Backward(w.waiting) {
		p.Waiting = append(p.Waiting, now.Sub(other.began))
	}
	return p
}
