// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/utils/clock"
)

// state is what a monitor sees.
type state struct {
	mu           sync.Mutex
	away, denied bool
}

func (s *state) set(change func(s *state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *state) reach() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errors.New("connection refused")
	}
	return nil
}

func (s *state) allowed(authorizationv1.ResourceAttributes) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.denied, nil
}

// An API server that is away for longer than a restart takes, or a permission that
// was taken away, turns the probe off, and says why; a call that comes is decided.
// When it is over, the probe is on again.
func TestMonitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world, ready := &state{}, &readiness{}
		m := newMonitor(world.reach, granting(world.allowed), ready, clock.RealClock{})
		parts, err := needsOf(defaultSettings(defaultServeOptions().registry), "own")
		require.NoError(t, err)
		m.expect(parts)
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go func() { assert.NoError(t, m.Start(ctx)) }()
		after := func(d time.Duration) error {
			<-time.After(d)
			synctest.Wait()
			return ready.probe()
		}
		require.NoError(t, after(time.Minute))

		world.set(func(s *state) { s.away = true })
		require.NoError(t, after(lookEvery), "a restart is nothing to speak of")
		require.ErrorContains(t, after(unreachableAfter+lookAgain), "the API server does not answer")
		require.NoError(t, ready.check(), "a call that comes is decided")
		world.set(func(s *state) { s.away = false })
		require.NoError(t, after(lookAgain), "it is back at once")

		world.set(func(s *state) { s.denied = true })
		since := time.Now()
		err = nil
		for err == nil && time.Since(since) < time.Hour {
			err = after(time.Second)
		}
		require.ErrorContains(t, err, "may not get, list, watch nodes")
		assert.Greater(t, time.Since(since), deniedAfter, "a new configuration may be on its way")
		assert.LessOrEqual(t, time.Since(since), askEvery+lookEvery+deniedAfter+2*askAgain)
		require.NoError(t, ready.check())
		m.expect(nil)
		require.NoError(t, after(askAgain), "nothing is needed any more")
	})
}

func TestMonitorHasToShutDown(t *testing.T) {
	ready := &readiness{}
	ready.report("x", errors.New("trouble"))
	ready.drain()
	assert.ErrorContains(t, ready.probe(), "shutting down", "what is final comes first")
}
