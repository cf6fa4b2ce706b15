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
	"github.com/prebind/prebind/binder/pacing"
	"github.com/prebind/prebind/test/gen"
)

// TestSeats_Limit: --max-holds can change while calls are held.
func TestSeats_Limit(t *testing.T) {
	var s seats
	now := time.Now()
	call := pacing.Occupant{Namespace: "a"}
	first := s.take(call, 2, now)
	require.NotNil(t, first)
	require.NotNil(t, s.take(call, 2, now))
	assert.Nil(t, s.take(call, 2, now), "both are taken")
	assert.NotNil(t, s.take(call, 3, now), "a third is allowed")
	assert.Nil(t, s.take(call, 1, now), "with fewer seats than calls no call leaves, and none is accepted")
	assert.Equal(t, 3, s.count())
	s.leave(first)
	s.leave(first)
	assert.Equal(t, 2, s.count())
}

// TestSeats_Namespaces: one namespace can have all seats only while no other needs one.
func TestSeats_Namespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const seats = 4
		w := newWaiter()
		objects := []client.Object{theNode}
		pods := map[string]Request{}
		for _, namespace := range []string{"crowd", "other"} {
			for i := range seats {
				pod := gen.Pod(fmt.Sprintf("%s-%d", namespace, i), gen.InNamespace(namespace), gen.UID(types.UID(fmt.Sprintf("%s-%d", namespace, i))))
				objects = append(objects, pod)
				pods[pod.Name] = requestFor(gen.Binding(pod, "node-a"))
			}
		}
		e := newTestEngine(t, func(o *Options) {
			o.Settings.MaxHolds, o.Settings.Plugins, o.Cached = seats, []framework.PreBinder{w}, holding(objects...)
		})
		var crowd []<-chan Decision
		for i := range seats {
			crowd = append(crowd, later(t.Context(), e, pods[fmt.Sprintf("crowd-%d", i)]))
			synctest.Wait()
		}
		answered := func() (n int) {
			synctest.Wait()
			for _, c := range crowd {
				n += len(c)
			}
			return n
		}
		require.Zero(t, answered(), "the only namespace has all seats")
		_ = later(t.Context(), e, pods["other-0"])
		assert.Equal(t, 1, answered(), "another namespace gets a seat at once")
		_ = later(t.Context(), e, pods["other-1"])
		assert.Equal(t, 2, answered(), "another namespace gets a second seat")
		third := later(t.Context(), e, pods["other-2"])
		assert.Equal(t, 2, answered(), "another namespace gets no more than its share")
		assert.Equal(t, framework.KindWait, kindOf((<-third).Err))
		for _, c := range crowd {
			if len(c) > 0 {
				assert.Equal(t, framework.KindWait, kindOf((<-c).Err))
			}
		}
		assert.Equal(t, seats, e.Stats().Holds)
		pass(testHold)
	})
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

// TestRetryAfter_OtherNamespaces: waits in one namespace do not delay clients of another one.
func TestRetryAfter_OtherNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const crowd = 800
		w := newWaiter()
		objects := []client.Object{theNode, thePod}
		for i := range crowd {
			objects = append(objects, gen.Pod(fmt.Sprintf("crowd-%d", i), gen.InNamespace("crowd"), gen.UID(types.UID(fmt.Sprintf("crowd-%d", i)))))
		}
		e := newTestEngine(t, func(o *Options) {
			o.Settings.MaxHolds, o.Settings.Plugins, o.Cached = 1, []framework.PreBinder{w}, holding(objects...)
		})
		held := later(t.Context(), e, theRequest())
		synctest.Wait()
		latest := time.Duration(0)
		for i := range crowd {
			d := e.Bind(t.Context(), requestFor(gen.Binding(gen.Pod(fmt.Sprintf("crowd-%d", i), gen.InNamespace("crowd")), "node-a")))
			require.Equal(t, framework.KindWait, kindOf(d.Err))
			latest = max(latest, d.RetryAfter)
		}
		assert.Greater(t, latest, 5*time.Second, "the calls of the crowd are spread")
		pass(testHold)
		assert.Equal(t, time.Second, (<-held).RetryAfter)
	})
}

// TestReportsWait_EveryTwoMinutes: a wait has one event every two minutes over all calls and
// replicas, because each event is a write of the API server.
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

		other := &call{services: &e.services, Request: theRequest(), began: time.Now(), key: attempt.Key{Pod: "pod-2", Node: "node-a"}, missed: 1, waitBegan: time.Now().Add(-30 * time.Second)}
		assert.False(t, other.reportsWait(wait), "another replica has reported it")
		pass(reportAgain)
		assert.True(t, other.reportsWait(wait), "the other report is old")
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
