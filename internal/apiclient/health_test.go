// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

var errRefused = errors.New("connection refused")

// answer is a transport that gives the same answer to every request.
type answer struct {
	code int
	err  error
}

// RoundTrip implements http.RoundTripper.
func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: a.code, Status: http.StatusText(a.code), Body: http.NoBody}, nil
}

// send sends a request with the answer a.
func send(ctx context.Context, t *testing.T, h *Health, a answer) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://apiserver/", nil)
	require.NoError(t, err)
	response, err := transport{next: a, takes: time.Minute, health: h}.RoundTrip(r)
	require.ErrorIs(t, err, a.err)
	if err == nil {
		require.NoError(t, response.Body.Close())
	}
}

func TestHealth_Unreachable(t *testing.T) {
	cases := map[string]struct {
		reason  string
		answers []answer
		want    string
	}{
		"Answers":     {reason: "any answer proves that the API server is alive", answers: []answer{{code: 200}}},
		"Refuses":     {reason: "the API server refuses connections", answers: []answer{{code: 200}, {err: errRefused}}, want: "the API server does not answer, for 11s: connection refused"},
		"First":       {reason: "the first error is reported", answers: []answer{{err: errRefused}, {err: errors.New("other")}}, want: "connection refused"},
		"Back":        {reason: "the API server answers again", answers: []answer{{err: errRefused}, {code: 200}}},
		"Gateway":     {reason: "a proxy answers instead of the API server", answers: []answer{{code: 502}}, want: "Bad Gateway"},
		"Credentials": {reason: "the API server accepts no request", answers: []answer{{code: 401}}, want: "Unauthorized"},
		"NotFound":    {reason: "the API server itself answers", answers: []answer{{err: errRefused}, {code: 404}}},
		"Internal":    {reason: "a single failed request proves nothing about others", answers: []answer{{err: errRefused}, {code: 500}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHealth(clock.RealClock{})
				for _, a := range tc.answers {
					send(t.Context(), t, h, a)
				}
				require.NoError(t, h.Problem(), "a restart of the API server is shorter than ten seconds")
				<-time.After(unreachableAfter + time.Second)
				if tc.want == "" {
					assert.NoError(t, h.Problem(), tc.reason)
				} else {
					assert.ErrorContains(t, h.Problem(), tc.want, tc.reason)
				}
			})
		})
	}
}

// TestHealth_CanceledRequest checks that a request that its caller cancels does not count.
func TestHealth_CanceledRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth(clock.RealClock{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		send(ctx, t, h, answer{err: context.Canceled})
		<-time.After(time.Hour)
		assert.NoError(t, h.Problem())
	})
}
