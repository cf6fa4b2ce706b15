// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package pacing

import (
	"cmp"
	"time"
)

// soon is the time to an event within which a call has priority over calls without an estimate.
const soon = 5 * time.Second

// fewRetries is the number of retries that a client should keep for an unexpectedly long wait.
const fewRetries = 4

// Occupant is a call that has a seat or needs one.
type Occupant struct {
	// Namespace of the pod.
	Namespace string
	// Calls is the number of calls for the bind so far, this one included.
	Calls int
	// Due is when the event is expected; zero if unknown.
	Due time.Time
}

// class sorts occupants: clients with few retries left, near events, unknown events, far events.
func (o Occupant) class(now time.Time) int {
	switch {
	case o.Calls > Retries-fewRetries:
		return 0
	case o.Due.IsZero(), o.Due.Before(now):
		return 2
	case o.Due.Sub(now) <= soon:
		return 1
	default:
		return 3
	}
}

// urgency compares two occupants; negative if a has priority over b.
func urgency(a, b Occupant, now time.Time) int {
	class := a.class(now)
	if c := cmp.Compare(class, b.class(now)); c != 0 || class == 0 || class == 2 {
		return c
	}
	return a.Due.Compare(b.Due)
}

// Displace decides whether a newcomer gets a seat, and which occupant leaves for it; -1 if a
// seat is free.
//
// Seats are shared between namespaces: a newcomer takes a seat from the namespace with the most
// seats if its own has at least two less. Otherwise it takes that of the least urgent call of its
// own namespace if it is more urgent. The cost is linear in the number of occupants.
func Displace(held []Occupant, newcomer Occupant, seats int, now time.Time) (leaves int, ok bool) {
	if len(held) < seats {
		return -1, true
	}
	count := map[string]int{}
	most := newcomer.Namespace
	for _, o := range held {
		count[o.Namespace]++
	}
	for _, o := range held { // In order, so that the result does not depend on the map's.
		if count[o.Namespace] > count[most] {
			most = o.Namespace
		}
	}
	if count[most] < count[newcomer.Namespace]+2 {
		most = newcomer.Namespace
	}
	leaves = -1
	for i, o := range held {
		if o.Namespace == most && (leaves < 0 || urgency(o, held[leaves], now) > 0) {
			leaves = i
		}
	}
	if leaves < 0 || most == newcomer.Namespace && urgency(newcomer, held[leaves], now) >= 0 {
		return -1, false
	}
	return leaves, true
}
