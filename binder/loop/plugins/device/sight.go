// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// sights records how long the lock of each node has been unchanged in the view of this process.
// Locks expire by this duration and not by the time in the lock, because that is from the clock
// of another machine. A fast clock would take every lock from its holder.
type sights struct {
	mu sync.Mutex
	// of contains the sights by node, for locks that a bind in this process waits for.
	of map[string]sight
}

// sight is a lock as it was last seen. A renewal changes its expiry.
type sight struct {
	uid     types.UID
	expires time.Time
	since   time.Time
}

// since returns since when the lock of the record has been unchanged. It discards sights
// that are older than forget, because their nodes may be gone.
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
