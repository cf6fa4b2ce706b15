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
	// unreachableAfter is how long the API server may be away before this replica is not
	// ready. A restart takes less.
	unreachableAfter = 10 * time.Second
	// deniedAfter is how long a permission may be missing before this replica is not
	// ready. An API server that has just started knows no permissions, and when a plugin
	// is switched off together with its role, the kubelet brings the new configuration
	// within about a minute.
	deniedAfter = 90 * time.Second
	// checkTakes is the time limit of one check of the permissions.
	checkTakes = 5 * time.Second
	// checkEvery is the shortest pause between two checks of permissions that are all
	// granted: the API server also answers Forbidden for other reasons, such as a
	// quota. checkAgain is the pause while one is missing.
	checkEvery = 30 * time.Second
	checkAgain = 3 * time.Second
)

// Health is the state of the API server and of Prebind's permissions. It sends no
// requests of its own while all is well: it learns from the answers to the requests
// that the process sends anyway. The renewal of the replica's Lease is one of them,
// every ten seconds. After an answer that says Forbidden, Watch checks the permissions
// until all are granted. It is safe for concurrent use.
type Health struct {
	clock clock.Clock
	// forbidden has a value when an answer said Forbidden since the last check.
	forbidden chan struct{}

	mu sync.Mutex
	// failing is since when no request has had an answer, and failure the first error;
	// nil when the last request had one.
	failing time.Time
	failure error
	// denied is since when a permission has been missing, and missing which; nil if none
	// is.
	denied  time.Time
	missing error
}

// NewHealth returns the state of an API server that answers.
func NewHealth(c clock.Clock) *Health {
	return &Health{clock: c, forbidden: make(chan struct{}, 1)}
}

// Problem returns why this replica should not get calls, or nil: the API server has not
// answered for more than ten seconds, or a permission has been missing for more than 90.
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

// Watch calls check whenever an answer has said Forbidden, and again while check returns
// an error, which says what is missing. It returns when the context ends.
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

// check returns what is missing, and notes it. While the API server does not answer,
// the last result stays.
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
		klog.InfoS("A permission is missing: this replica becomes unready if it stays missing", "after", deniedAfter, "reason", err.Error())
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

// observe notes the outcome of a request.
func (h *Health) observe(r *http.Request, response *http.Response, err error) {
	if err != nil && errors.Is(r.Context().Err(), context.Canceled) {
		return // The caller gave up, which says nothing about the API server.
	}
	if err == nil {
		switch response.StatusCode {
		case http.StatusForbidden:
			select {
			case h.forbidden <- struct{}{}:
			default:
			}
		case http.StatusUnauthorized, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			// No client of Prebind gets further than this, or a proxy answers.
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

// observed shows the outcome of each request to health.
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

// WrappedRoundTripper lets client-go find the transport, to close its idle connections.
func (o observed) WrappedRoundTripper() http.RoundTripper { return o.next }
