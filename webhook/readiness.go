// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
)

// Readiness reports whether this replica can decide on Bindings, and whether it should receive
// calls. The zero value is ready. Add all functions first. They and the other methods are safe for concurrent use.
type Readiness struct {
	synced   atomic.Bool
	draining atomic.Bool

	once []func() error
	// always contains the functions that each probe calls.
	always []func() error
}

// WaitFor makes the replica unready until the cache of the kind is synced.
func (r *Readiness) WaitFor(kind string, synced func() bool) {
	r.RequireOnce(func() error {
		if !synced() {
			return fmt.Errorf("this replica is starting and has not read all objects of the kind %s", kind)
		}
		return nil
	})
}

// RequireOnce makes the replica unready until all functions return nil for the first time. Check returns the error of the first one
// that does not.
func (r *Readiness) RequireOnce(ready func() error) { r.once = append(r.once, ready) }

// Require makes the replica unready while the function returns an error.
func (r *Readiness) Require(ready func() error) { r.always = append(r.always, ready) }

// Drain makes the replica unready until the process exits.
func (r *Readiness) Drain() { r.draining.Store(true) }

// Check returns the reason why this replica cannot decide on Bindings, or nil. It is cheap enough
// for every call.
func (r *Readiness) Check() error {
	if r.draining.Load() {
		return errors.New("this replica is shutting down")
	}
	if r.synced.Load() {
		return nil
	}
	for _, ready := range r.once {
		if err := ready(); err != nil {
			return err
		}
	}
	// A cache that is synced stays synced.
	r.synced.Store(true)
	return nil
}

// Probe returns the reason why this replica should not receive calls, or nil. If Probe fails but
// Check returns nil, the replica still answers calls: a call proves that an API server is alive,
// and other replicas may have the same problem.
func (r *Readiness) Probe() error {
	if err := r.Check(); err != nil {
		return err
	}
	for _, ready := range r.always {
		if err := ready(); err != nil {
			return err
		}
	}
	return nil
}

// Probes returns a handler of /healthz, which always succeeds, and of /readyz, which
// returns the error of Probe. The probes of controller-runtime do not return the error.
func (r *Readiness) Probes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := r.Probe(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}
