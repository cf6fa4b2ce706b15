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

// send sends a request that gets the answer.
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
		"Answers":     {reason: "an answer is a sign of life", answers: []answer{{code: 200}}},
		"Refuses":     {reason: "nothing listens there", answers: []answer{{code: 200}, {err: errRefused}}, want: "the API server does not answer, for 11s: connection refused"},
		"First":       {reason: "the first error says more than the last", answers: []answer{{err: errRefused}, {err: errors.New("other")}}, want: "connection refused"},
		"Back":        {reason: "it answers again", answers: []answer{{err: errRefused}, {code: 200}}},
		"Gateway":     {reason: "a proxy answers in its place", answers: []answer{{code: 502}}, want: "Bad Gateway"},
		"Credentials": {reason: "no request gets further", answers: []answer{{code: 401}}, want: "Unauthorized"},
		"NotFound":    {reason: "it is the API server's own answer", answers: []answer{{err: errRefused}, {code: 404}}},
		"Internal":    {reason: "one request failed, and others need not", answers: []answer{{err: errRefused}, {code: 500}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHealth(clock.RealClock{})
				for _, a := range tc.answers {
					send(t.Context(), t, h, a)
				}
				require.NoError(t, h.Problem(), "a restart takes less than ten seconds")
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

// TestHealth_CallerGaveUp: a request that its caller ends says nothing.
func TestHealth_CallerGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth(clock.RealClock{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		send(ctx, t, h, answer{err: context.Canceled})
		<-time.After(time.Hour)
		assert.NoError(t, h.Problem())
	})
}

// TestHealth_Permissions: nothing is checked before an answer says Forbidden; then the
// check is repeated until everything is granted, and never more often than the pauses.
func TestHealth_Permissions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth(clock.RealClock{})
		checks, missing := 0, error(nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go h.Watch(ctx, func(context.Context) error { checks++; return missing })
		after := func(d time.Duration) error {
			<-time.After(d)
			synctest.Wait()
			return h.Problem()
		}
		require.NoError(t, after(time.Hour))
		assert.Zero(t, checks, "no check without a cause")

		for range 1000 {
			send(t.Context(), t, h, answer{code: 403})
		}
		require.NoError(t, after(checkEvery-time.Second))
		assert.Equal(t, 1, checks, "a quota that refuses many requests causes few checks")
		require.NoError(t, after(time.Hour))
		checks = 0

		missing = errors.New("may not list nodes")
		send(t.Context(), t, h, answer{code: 403})
		require.NoError(t, after(deniedAfter), "a new configuration may be on its way")
		require.ErrorIs(t, after(time.Second), missing)
		assert.InDelta(t, deniedAfter/checkAgain, checks, 2)

		checks = 0
		send(t.Context(), t, h, answer{err: errRefused})
		require.ErrorContains(t, after(time.Minute), "does not answer", "that comes first")
		assert.Zero(t, checks, "nobody would answer them")
		send(t.Context(), t, h, answer{code: 200})
		require.ErrorIs(t, h.Problem(), missing, "the last result stays meanwhile")

		missing = nil
		require.NoError(t, after(checkAgain), "it is granted again")
	})
}
