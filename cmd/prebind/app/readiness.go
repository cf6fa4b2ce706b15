// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// readiness tells whether Bindings can be decided, and whether they should come
// here. It is safe for concurrent use.
type readiness struct {
	synced   atomic.Bool
	draining atomic.Bool

	mu     sync.Mutex
	caches []cacheState
	others []func() error
	// required are asked at each probe.
	required []func() error
	// unready is true after a probe that one of required failed.
	unready bool
}

type cacheState struct {
	kind   string
	synced func() bool
}

// waitFor makes the process unready until the cache of the kind is synced.
func (r *readiness) waitFor(kind string, synced func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.caches = append(r.caches, cacheState{kind: kind, synced: synced})
}

// waitUntil makes the process unready until ready has returned nil once.
func (r *readiness) waitUntil(ready func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.others = append(r.others, ready)
}

// require makes the process unready whenever ready returns an error.
func (r *readiness) require(ready func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.required = append(r.required, ready)
}

// drain makes the process unready for good.
func (r *readiness) drain() { r.draining.Store(true) }

// check returns why Bindings cannot be decided here, or nil. It is asked for every
// call.
func (r *readiness) check() error {
	if r.draining.Load() {
		return errors.New("this replica is shutting down")
	}
	if r.synced.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var missing []string
	for _, c := range r.caches {
		if !c.synced() && !slices.Contains(missing, c.kind) {
			missing = append(missing, c.kind)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this replica has just started and has not read all of: %s", strings.Join(missing, ", "))
	}
	for _, ready := range r.others {
		if err := ready(); err != nil {
			return err
		}
	}
	// A cache that is synced stays so.
	r.synced.Store(true)
	return nil
}

// probe returns why calls should go to another replica, or nil. A call that comes
// all the same is decided while check has nothing against it: it is the proof that
// some API server lives, and another replica may be in the same trouble.
func (r *readiness) probe() error {
	if err := r.check(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ready := range r.required {
		if err := ready(); err != nil {
			if !r.unready {
				klog.ErrorS(err, "Not ready: calls should go to another replica")
			}
			r.unready = true
			return err
		}
	}
	if r.unready {
		klog.InfoS("Ready again")
	}
	r.unready = false
	return nil
}
