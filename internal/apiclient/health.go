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

	"k8s.io/utils/clock"
)

// unreachableAfter is the time without an answer of the API server after which this replica is not
// ready. A restart of the API server is shorter.
const unreachableAfter = 10 * time.Second

// Health is the state of the API server. It observes the answers to all requests of the process, such
// as the renewal of the replica's Lease every ten seconds, and sends no requests. It is safe for
// concurrent use.
type Health struct {
	clock clock.Clock

	mu sync.Mutex
	// failing is the time of the first request without an answer. failure is its error, or nil
	// if the last request had an answer.
	failing time.Time
	failure error
}

// NewHealth returns a Health without problems.
func NewHealth(c clock.Clock) *Health { return &Health{clock: c} }

// Problem returns an error if this replica should not receive calls, because the API server has not
// answered for more than ten seconds.
func (h *Health) Problem() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if away := h.clock.Since(h.failing); h.failure != nil && away > unreachableAfter {
		return fmt.Errorf("the API server does not answer, for %s: %w", away.Round(time.Second), h.failure)
	}
	return nil
}

// observe records the outcome of a request.
func (h *Health) observe(r *http.Request, response *http.Response, err error) {
	if err != nil && errors.Is(r.Context().Err(), context.Canceled) {
		return // The caller canceled the request.
	}
	if err == nil {
		switch response.StatusCode {
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
