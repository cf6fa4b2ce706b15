// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package apiclient

import (
	"context"
	"errors"
	"net/http"
	"sync"
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
	response, err := observed{next: a, health: h}.RoundTrip(r)
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

// TestHealth_Permissions checks that the first check follows an answer with status Forbidden, and
// that checks are repeated at the intervals until everything is granted.
func TestHealth_Permissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth(clock.RealClock{})
		var mu sync.Mutex
		checks, missing := 0, error(nil)
		// set sets the missing permission and resets the number of checks.
		set := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			checks, missing = 0, err
		}
		checked := func() int {
			mu.Lock()
			defer mu.Unlock()
			return checks
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go h.Watch(ctx, func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			checks++
			return missing
		})
		after := func(d time.Duration) error {
			<-time.After(d)
			synctest.Wait()
			return h.Problem()
		}
		require.NoError(t, after(time.Hour))
		assert.Zero(t, checked(), "there is no check without a Forbidden answer")

		for range 1000 {
			send(t.Context(), t, h, answer{code: 403})
		}
		require.NoError(t, after(checkEvery-time.Second))
		assert.Equal(t, 1, checked(), "a quota that rejects many requests causes few checks")
		require.NoError(t, after(time.Hour))

		denied := errors.New("may not list nodes")
		set(denied)
		send(t.Context(), t, h, answer{code: 403})
		require.NoError(t, after(deniedAfter), "a new configuration may not have arrived yet")
		require.ErrorIs(t, after(time.Second), denied)
		assert.InDelta(t, deniedAfter/checkAgain, checked(), 2)

		set(denied)
		send(t.Context(), t, h, answer{err: errRefused})
		require.ErrorContains(t, after(time.Minute), "does not answer", "a missing answer is reported before a missing permission")
		assert.Zero(t, checked(), "the API server would not answer a check")
		send(t.Context(), t, h, answer{code: 200})
		require.ErrorIs(t, h.Problem(), denied, "the last result is kept")

		set(nil)
		require.NoError(t, after(checkAgain), "the permission is granted again")
	})
}
