// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// sights are since when this process has seen the lock of each node as it is. By them
// a lock expires, and not by the time that stands in it: that is of another machine's
// clock, and one that is ahead would take every lock from its holder.
type sights struct {
	mu sync.Mutex
	// of is by node, for locks that somebody here wants.
	of map[string]sight
}

// sight is a lock as it was seen. A renewal changes the time in it.
type sight struct {
	uid     types.UID
	expires time.Time
	since   time.Time
}

// since returns since when the record's lock has been seen as it is. What is older than
// forget is not kept for good: its node may be gone.
func (s *sights) since(r *record, now time.Time, forget time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Lock == nil {
		delete(s.of, r.Node)
		return now
	}
	last, ok := s.of[r.Node]
	if !ok || last.uid != r.Lock.UID || !last.expires.Equal(r.Lock.Expires) {
		maps.DeleteFunc(s.of, func(_ string, old sight) bool { return now.Sub(old.since) > forget })
		last = sight{uid: r.Lock.UID, expires: r.Lock.Expires, since: now}
		s.of[r.Node] = last
	}
	return last.since
}
