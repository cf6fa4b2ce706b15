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
	// trouble is what is wrong at run time, by what is watched.
	trouble map[string]error
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

// report sets what is wrong with something that is watched, or nil.
func (r *readiness) report(what string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trouble == nil {
		r.trouble = map[string]error{}
	}
	r.trouble[what] = err
}

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
	for _, err := range r.trouble {
		if err != nil {
			return err
		}
	}
	for _, ready := range r.required {
		if err := ready(); err != nil {
			return err
		}
	}
	return nil
}
