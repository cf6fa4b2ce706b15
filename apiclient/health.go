// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// unreachableAfter is the time without an answer of the API server after which this
	// replica is not ready. A restart of the API server is shorter.
	unreachableAfter = 10 * time.Second
	// deniedAfter is the time without a permission after which this replica is not ready.
	// An API server that is starting grants no permissions. If you delete the role of a plugin
	// that you switch off, the kubelet updates the configuration within about a minute.
	deniedAfter = 90 * time.Second
	// checkTakes is the time limit of one check of the permissions.
	checkTakes = 5 * time.Second
	// checkEvery is the minimum time between two checks while all permissions are granted,
	// because the API server also answers Forbidden for other reasons, such as a quota.
	// checkAgain is the time between two checks while a permission is missing.
	checkEvery = 30 * time.Second
	checkAgain = 3 * time.Second
)

// Health is the state of the API server and of Prebind's permissions. It observes the
// answers to all requests of the process, such as the renewal of the replica's Lease every
// ten seconds. It sends no requests while there are no problems. After an answer with
// status Forbidden, Watch checks the permissions until all are granted. It is safe for
// concurrent use.
type Health struct {
	clock clock.Clock
	// forbidden has a value if an answer since the last check had status Forbidden.
	forbidden chan struct{}

	mu sync.Mutex
	// failing is the time of the first request without an answer. failure is its error, or nil
	// if the last request had an answer.
	failing time.Time
	failure error
	// denied is the time when a permission was first missing. missing names the permission, or
	// is nil if all permissions are granted.
	denied  time.Time
	missing error
}

// NewHealth returns a Health without problems.
func NewHealth(c clock.Clock) *Health {
	return &Health{clock: c, forbidden: make(chan struct{}, 1)}
}

// Problem returns an error if this replica should not receive calls: the API server has not
// answered for more than ten seconds, or a permission has been missing for more than 90 seconds.
func (h *Health) Problem() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if away := h.clock.Since(h.failing); h.failure != nil && away > unreachableAfter {
		return fmt.Errorf("the API server does not answer, for %s: %w", away.Round(time.Second), h.failure)
	}
	if h.missing != nil && h.clock.Since(h.denied) > deniedAfter {
		return h.missing
	}
	return nil
}

// Watch calls check after each answer with status Forbidden, and repeats the call while check
// returns an error. Watch returns when the context ends.
func (h *Health) Watch(ctx context.Context, check func(context.Context) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.forbidden:
		}
		for h.check(ctx, check) != nil {
			if !h.pause(ctx, checkAgain) {
				return
			}
		}
		h.pause(ctx, checkEvery)
	}
}

// check records the result of a check. While the API server does not answer, it returns
// the last result.
func (h *Health) check(ctx context.Context, check func(context.Context) error) error {
	h.mu.Lock()
	away, missing := h.failure != nil, h.missing
	h.mu.Unlock()
	if away && missing != nil {
		return missing
	}
	ctx, cancel := context.WithTimeout(ctx, checkTakes)
	defer cancel()
	err := check(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil && h.missing == nil {
		h.denied = h.clock.Now()
		klog.InfoS("A permission is missing; this replica becomes unready if it stays missing", "after", deniedAfter, "reason", err.Error())
	}
	h.missing = err
	return err
}

// pause returns false when the context has ended.
func (h *Health) pause(ctx context.Context, d time.Duration) bool {
	timer := h.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// observe records the outcome of a request.
func (h *Health) observe(r *http.Request, response *http.Response, err error) {
	if err != nil && errors.Is(r.Context().Err(), context.Canceled) {
		return // The caller canceled the request.
	}
	if err == nil {
		switch response.StatusCode {
		case http.StatusForbidden:
			select {
			case h.forbidden <- struct{}{}:
			default:
			}
		case http.StatusUnauthorized, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			// The API server rejects every request of Prebind, or a proxy answers instead.
			err = errors.New(response.Status)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.failure = nil
	} else if h.failure == nil {
		h.failing, h.failure = h.clock.Now(), err
	}
}

// observed reports the outcome of each request to health.
type observed struct {
	next   http.RoundTripper
	health *Health
}

// RoundTrip implements http.RoundTripper.
func (o observed) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := o.next.RoundTrip(r)
	o.health.observe(r, response, err)
	return response, err
}

// WrappedRoundTripper returns the transport, so that client-go can close its idle connections.
func (o observed) WrappedRoundTripper() http.RoundTripper { return o.next }
