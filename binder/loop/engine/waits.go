// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"time"

	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	oldframework "github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/loop"
	"github.com/prebind/prebind/binder/loop/work"
)

const (
	// forgetWaits is how long a bind is remembered after its last call. It is longer than any
	// Retry-After.
	forgetWaits = 2*time.Minute + loop.MaxRetryAfter
	// rememberWaits is the number of binds that are remembered.
	rememberWaits = 10_000
)

// waited describes the earlier calls for one bind.
type waited struct {
	calls int
	since time.Time
	// reported is when an event last reported the wait, and object the object that it named.
	reported time.Time
	object   oldframework.Object
}

// waits remembers the binds that had to wait. It is safe for concurrent use.
type waits struct {
	mu    sync.Mutex // Held while an entry is changed.
	cache *utilcache.LRUExpireCache
}

func newWaits(c clock.Clock) waits {
	return waits{cache: utilcache.NewLRUExpireCacheWithClock(rememberWaits, c)}
}

// before returns the earlier calls for the bind. Without any, its wait begins at the time.
func (w *waits) before(key work.Key, began time.Time) waited {
	if found, ok := w.cache.Get(key); ok {
		if known, ok := found.(waited); ok {
			return known
		}
	}
	return waited{since: began}
}

// change changes what is remembered of the bind.
func (w *waits) change(key work.Key, began time.Time, change func(*waited)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.before(key, began)
	change(&known)
	w.cache.Add(key, known, forgetWaits)
}

// forget drops a bind that was allowed.
func (w *waits) forget(key work.Key) { w.cache.Remove(key) }
