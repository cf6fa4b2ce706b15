// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/attempt"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// TestSeats_Limit: --max-holds can change while calls are held.
func TestSeats_Limit(t *testing.T) {
	var s seats
	require.True(t, s.take(2))
	require.True(t, s.take(2))
	assert.False(t, s.take(2), "both are taken")
	assert.True(t, s.take(3), "a third is allowed")
	assert.False(t, s.take(1), "with fewer seats than calls, none is accepted")
	assert.Equal(t, 3, s.count())
	s.leave()
	assert.Equal(t, 2, s.count())
}

func TestPause(t *testing.T) {
	cases := map[string]struct {
		reason string
		waited time.Duration
		random float64
		want   time.Duration
	}{
		"First":  {reason: "the bind has not waited yet", random: 0.9, want: 2 * time.Second},
		"Half":   {reason: "half of the elapsed time", waited: 20 * time.Second, random: 0.5, want: 10 * time.Second},
		"Early":  {reason: "at most a quarter less", waited: 40 * time.Second, random: 0, want: 15 * time.Second},
		"Late":   {reason: "at most a quarter more", waited: 40 * time.Second, random: 0.999, want: 24 * time.Second},
		"Longer": {reason: "long waits are spread, too", waited: time.Hour, random: 0, want: 22 * time.Second},
		"Most":   {reason: "no pause is longer", waited: time.Hour, random: 0.9, want: MaxRetryAfter},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, pause(tc.waited, tc.random), tc.reason)
		})
	}
}

// TestSeats_Exempt: calls of exempt users have separate seats.
func TestSeats_Exempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		objects := []client.Object{theNode}
		var calls []Request
		for i := range exemptFactor + 3 {
			pod := gen.Pod(fmt.Sprintf("pod-%d", i), gen.UID(types.UID(fmt.Sprintf("pod-%d", i))))
			objects = append(objects, pod)
			calls = append(calls, requestFor(gen.Binding(pod, "node-a")))
		}
		e := newTestEngine(t, func(o *Options) {
			o.Settings.MaxHolds, o.Settings.Plugins, o.Cached = 1, []framework.PreBinder{w}, holding(objects...)
		})
		post := func(user string) <-chan Decision {
			call := calls[0]
			calls = calls[1:]
			call.User.Username = user
			answer := later(t.Context(), e, call)
			synctest.Wait()
			return answer
		}
		held := post("scheduler")
		require.Empty(t, held)
		assert.Len(t, post("scheduler"), 1, "without exempt users there is one seat")
		assert.Equal(t, 1, e.Stats().Holds)
		assert.Equal(t, 1, e.Stats().MaxHolds)

		e.Exempt(func(u authenticationv1.UserInfo) bool { return u.Username == "scheduler" })
		for range exemptFactor {
			assert.Empty(t, post("scheduler"), "an exempt call does not need the seat")
		}
		assert.Len(t, post("another"), 1, "the seat of other users is taken")
		stats := e.Stats()
		assert.Equal(t, 1+exemptFactor, stats.Holds)
		assert.Equal(t, 1+exemptFactor, stats.MaxHolds)

		e.Exempt(nil)
		pass(testHold)
		synctest.Wait()
		assert.Zero(t, e.Stats().Holds, "each call returned its own seat")
		assert.Equal(t, 1, e.Stats().MaxHolds)
	})
}

// TestReportsWait_EveryTwoMinutes: a wait has one event every two minutes over all calls,
// because each event is a write of the API server.
func TestReportsWait_EveryTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newTestEngine(t, nil)
		c := &call{services: &e.services, Request: theRequest(), began: time.Now(), key: attempt.Key{Pod: "pod-1", Node: "node-a"}}
		wait := framework.Wait(claim, "waiting for the volume of the test")
		assert.True(t, c.reportsWait(wait), "the first wait is reported")
		pass(time.Minute)
		assert.False(t, c.reportsWait(wait), "it has just been reported")
		assert.True(t, c.reportsWait(framework.Wait(framework.Object{Kind: "Node", Name: "node-a"}, "waiting for a label")), "another object is reported")
		pass(reportAgain)
		assert.True(t, c.reportsWait(wait))
	})
}

// TestHold_IsReported: an event reports a wait long before the hold ends.
func TestHold_IsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiter()
		s := newSceneWith(t, func(o *Options) {
			o.Settings = Settings{
				Mode: ModeEnforce, Mutators: chain(t), Plugins: []framework.PreBinder{w}, Hold: 28 * time.Second, MaxHolds: 32,
				PreBindTimeout: time.Minute, MaxPreBindTimeout: time.Minute,
			}
		})
		answer := later(quiet(t), s.Engine, theRequest())
		pass(reportAfter - time.Second)
		assert.Empty(t, s.events.all(), "short waits have no event")
		pass(2 * time.Second)
		require.Len(t, s.events.all(), 1)
		assert.Contains(t, s.events.all()[0], "WaitingForPreBind: waiter: PersistentVolumeClaim default/data: waiting for the volume of the test")
		assert.Empty(t, answer, "the call is still held")
		w.release <- nil
		assert.Nil(t, (<-answer).Err)
	})
}
