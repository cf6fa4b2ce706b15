// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

// readiness tells whether Bindings can be decided. waitFor is called before the
// first check; the rest is safe for concurrent use.
type readiness struct {
	caches   []cacheState
	synced   atomic.Bool
	draining atomic.Bool
}

type cacheState struct {
	kind   string
	synced func() bool
}

func (r *readiness) waitFor(kind string, synced func() bool) {
	r.caches = append(r.caches, cacheState{kind: kind, synced: synced})
}

// drain makes the process unready for good.
func (r *readiness) drain() { r.draining.Store(true) }

// check returns why Bindings cannot be decided, or nil.
func (r *readiness) check() error {
	if r.draining.Load() {
		return errors.New("this replica is shutting down")
	}
	if r.synced.Load() {
		return nil
	}
	var missing []string
	for _, c := range r.caches {
		if !c.synced() {
			missing = append(missing, c.kind)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this replica has just started and has not read all of: %s", strings.Join(missing, ", "))
	}
	// A cache that is synced stays so.
	r.synced.Store(true)
	return nil
}
