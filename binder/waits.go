// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/work"
)

// rememberWaits is the number of binds that are remembered. If more wait, their budgets begin again with each call.
const rememberWaits = 50_000

// waited describes the calls for one bind since it was rejected last.
type waited struct {
	calls int
	// since is the time of the first call.
	since time.Time
	// pod is the name of the pod. waiting is the answer to a call that waits for wait, or nil. budget is the time that
	// the bind has.
	pod     types.NamespacedName
	waiting *framework.Error
	wait    framework.Wait
	budget  time.Duration
	// next is when the next call is expected, from the last change on.
	next time.Duration
	// allowed is when the bind was allowed first after it waited last, or zero.
	allowed time.Time
	// reported is when an event last reported the wait, and object the object that it named.
	reported time.Time
	object   framework.Object
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
	found, _ := w.cache.Get(key)
	if known, ok := found.(waited); ok {
		return known
	}
	return waited{since: began}
}

// change changes what is remembered of the bind, until work.AbandonAfter after the next call was expected.
func (w *waits) change(key work.Key, began time.Time, change func(*waited)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.before(key, began)
	change(&known)
	w.cache.Add(key, known, known.next+work.AbandonAfter)
}

// end forgets the bind. If it was allowed, the time of its wait is kept as long as its work: the API server calls again if a later webhook changes
// the Binding, and the client if the bind fails. A wait that timed out with Allow must then not begin again.
func (w *waits) end(key work.Key, now time.Time, allowed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, _ := w.cache.Get(key)
	known, ok := found.(waited)
	if known.allowed.IsZero() {
		known.allowed = now
	}
	left := framework.BindSettles - now.Sub(known.allowed)
	if !ok || !allowed || left <= 0 {
		w.cache.Remove(key)
		return
	}
	known.waiting, known.wait = nil, framework.Wait{}
	w.cache.Add(key, known, left)
}

// all returns the binds that wait. It removes those that have expired, which the cache keeps until they are asked for.
func (w *waits) all() map[work.Key]waited {
	w.mu.Lock()
	defer w.mu.Unlock()
	all, valid := map[work.Key]waited{}, sets.New(w.cache.Keys()...)
	w.cache.RemoveAll(func(key any) bool { return !valid.Has(key) })
	for k := range valid {
		key, ok := k.(work.Key)
		if known := w.before(key, time.Time{}); ok && known.waiting != nil {
			all[key] = known
		}
	}
	return all
}
