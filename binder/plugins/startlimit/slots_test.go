// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

func TestMerge(t *testing.T) {
	now := time.Unix(10000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	reserved := func(name string, since time.Time) starting {
		return starting{namespace: "default", uid: types.UID(name), since: since, attempt: "attempt"}
	}
	r := rules{limit: 3, timeout: time.Minute}
	cases := map[string]struct {
		reason   string
		pods     []*corev1.Pod
		reserved []starting
		want     []types.UID
		next     time.Time
	}{
		"None":       {reason: "the node is idle"},
		"Pods":       {reason: "the first one counts no longer in 20 s", pods: []*corev1.Pod{boundSince("a", ago(0)), boundSince("b", ago(40*time.Second))}, want: []types.UID{"a", "b"}, next: now.Add(20 * time.Second)},
		"Both":       {reason: "a bind that is in progress counts", pods: []*corev1.Pod{boundSince("a", ago(0))}, reserved: []starting{reserved("b", ago(0))}, want: []types.UID{"a", "b"}, next: now.Add(time.Minute)},
		"Same":       {reason: "a pod with a reservation counts once", pods: []*corev1.Pod{boundSince("a", ago(0))}, reserved: []starting{reserved("a", ago(50*time.Second))}, want: []types.UID{"a"}, next: now.Add(time.Minute)},
		"Old":        {reason: "the pod did not start in time", pods: []*corev1.Pod{boundSince("a", ago(time.Minute))}},
		"OldBind":    {reason: "the reservation was not released in time", reserved: []starting{reserved("a", ago(time.Minute))}},
		"NotCounted": {reason: "the live reader also returns pods that do not count", pods: []*corev1.Pod{boundSince("a", ago(0), waitsFor("ImagePullBackOff"))}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var pods []corev1.Pod
			for _, pod := range tc.pods {
				pods = append(pods, *pod)
			}
			all := r.merge(pods, tc.reserved, now)
			var got []types.UID
			for _, s := range all {
				got = append(got, s.uid)
			}
			assert.Equal(t, tc.want, got, tc.reason)
			assert.True(t, tc.next.Equal(r.next(all)), tc.reason)
		})
	}
}

func TestShare(t *testing.T) {
	cases := map[string]struct {
		reason                    string
		limit, replicas, observed int
		want                      int
	}{
		"One":         {reason: "no other replica takes slots", limit: 5, replicas: 1, observed: 2, want: 3},
		"Two":         {reason: "each replica gets half of the slots", limit: 10, replicas: 2, want: 5},
		"Remainder":   {reason: "the shares do not exceed the free slots", limit: 5, replicas: 2, want: 2},
		"Fewer":       {reason: "the replicas share only the free slots", limit: 10, replicas: 2, observed: 6, want: 2},
		"Last":        {reason: "a replica may take the last slot", limit: 10, replicas: 2, observed: 9, want: 1},
		"Full":        {reason: "the limit itself decides", limit: 10, replicas: 2, observed: 12, want: 1},
		"ManyReplica": {reason: "each replica can bind pods", limit: 2, replicas: 5, want: 1},
		"Unknown":     {reason: "there may be any number of replicas", limit: 10, want: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := rules{limit: tc.limit, replicas: tc.replicas}
			assert.Equal(t, tc.want, r.share(tc.observed), tc.reason)
		})
	}
}

func TestTake_SharesFreeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(4))
		replicas := 0
		w.h.Replicas = func() int { return replicas }
		assert.True(t, w.Take(t.Context(), bind("a")))
		assert.False(t, w.Take(t.Context(), bind("b")), "the number of replicas is not known")
		replicas = 2
		assert.True(t, w.Take(t.Context(), bind("b")))
		assert.False(t, w.Take(t.Context(), bind("c")), "two slots are those of the other replica")
		assert.True(t, w.Take(t.Context(), bind("b")), "the bind is repeated")
		c, d := w.start(t.Context(), bind("c")), w.start(t.Context(), bind("d"))
		assertWaits(t, "two slots are those of the other replica", c, d)
		w.server.Put(bound("a"))
		assertWaits(t, "the replicas share three slots, and this one has reserved a slot", c, d)
		w.server.Put(bound("b"))
		assertTaken(t, "the replica has observed its pods", c)
		assertWaits(t, "one slot is that of the other replica", d)
		w.server.Put(bound("c"))
		assertTaken(t, "the other replica has not used its slot", d)
		w.server.Put(bound("d"))
		replicas = 1
		assert.False(t, w.Take(t.Context(), bind("e")), "the node is full")
	})
}

// A scheduler repeats a bind that never succeeds.
func TestReservation_EndsDespiteRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		args := small(1)
		args.Wait = time.Hour
		w := newWorld(t, args)
		retry := func(i int) bool {
			bc := bind("failing")
			bc.Attempt = fmt.Sprint(i)
			return w.Take(t.Context(), bc)
		}
		require.True(t, retry(0))
		next := w.start(t.Context(), bind("next"))
		for i := range 7 {
			<-time.After(40 * time.Second)
			require.True(t, retry(i+1), "the bind keeps its slot")
			assertWaits(t, "the bind that is repeated may still succeed", next)
		}
		<-time.After(args.StartTimeout - 280*time.Second)
		assertTaken(t, "the reservation is older than startTimeout", next)
		assert.False(t, retry(8), "the bind needs a new slot")
	})
}

func TestTake_ExpiredReservationQueuesAgain(t *testing.T) {
	s, r, now := newSlots(), rules{limit: 1, timeout: time.Minute}, time.Unix(1000, 0)
	own := starting{uid: "a", since: now, attempt: "1"}
	require.True(t, s.take(nodeA, own, nil, view{}, r, false).taken)
	before := s.enter(nodeA)
	own.since, own.attempt = now.Add(59*time.Second), "2"
	require.True(t, s.take(nodeA, own, nil, view{}, r, false).taken)
	reserved, _ := s.on(nodeA)
	assert.Equal(t, now, reserved[0].since, "a repeated bind does not extend its reservation")
	assert.Equal(t, "2", reserved[0].attempt)
	own.since = now.Add(time.Minute)
	assert.False(t, s.take(nodeA, own, nil, view{}, r, false).taken, "another bind waits")
	assert.True(t, s.take(nodeA, starting{uid: "b", since: own.since}, before, view{}, r, false).taken)
}

// The bind behind a ticket has looked and found that it is not its turn.
func TestAttend_GivesTheTurnToTheNext(t *testing.T) {
	s, changed := newSlots(), 0
	s.connect(func(string) { changed++ }, func() int { return 1 })
	first, second := s.enter(nodeA), s.enter(nodeA)
	assert.True(t, s.canTake(first, "a", 1))
	assert.False(t, s.canTake(second, "b", 1))
	s.attend(second, true, 1)
	s.attend(second, false, 1)
	assert.Zero(t, changed, "no bind waited for its turn")
	s.attend(first, true, 1)
	assert.Equal(t, 1, changed, "it is the turn of the next one")
	assert.False(t, s.canTake(first, "a", 1))
	assert.True(t, s.canTake(second, "b", 1))
	s.attend(first, true, 1)
	s.attend(second, true, 1)
	assert.Equal(t, 1, changed, "no other client waits")
	_, queued := s.on(nodeA)
	assert.Zero(t, queued)
	s.attend(first, false, 1)
	assert.True(t, s.canTake(first, "a", 1), "it keeps its place")
}

func TestTake_EachHasItsOwnTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(1))
		held := func() int { synctest.Wait(); reserved, _ := w.slots.count(); return reserved }
		require.True(t, w.Take(t.Context(), bind("web")))
		<-time.After(45 * time.Second)
		require.True(t, w.Take(t.Context(), bind("web")), "the same attempt repeats the bind")
		<-time.After(6 * time.Second)
		assert.Equal(t, 1, held(), "the bind was repeated 6 s ago")
		<-time.After(44*time.Second - time.Nanosecond)
		assert.Equal(t, 1, held())
		<-time.After(time.Nanosecond)
		assert.Zero(t, held(), "the bind was repeated 50 s ago")
	})
}

// A tenant decides how large a pod is.
func TestTake_KeepsNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(1))
		take := func() weak.Pointer[corev1.Pod] {
			bc := bind("web")
			require.True(t, w.Take(t.Context(), bc))
			return weak.Make(bc.Pod)
		}
		pod := take()
		runtime.GC()
		assert.Nil(t, pod.Value(), "the timer refers to the UID of the pod only")
		reserved, _ := w.slots.count()
		assert.Equal(t, 1, reserved)
	})
}

// busy is a reader of a cache that receives pods of other nodes all the time.
type busy struct {
	framework.Reader
	slots *slots
	lists atomic.Int32
	idle  atomic.Bool
}

// List implements client.Reader.
func (b *busy) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if b.lists.Add(1) > 100 {
		return errors.New("too many lists")
	}
	if b.idle.Load() {
		return b.Reader.List(ctx, into, opts...)
	}
	b.slots.take("node-b", starting{uid: "other", since: time.Now(), attempt: "1"}, nil, view{seen: b.slots.observations()}, rules{limit: 1, timeout: time.Minute}, false)
	b.slots.observed("node-b", "other")
	return b.Reader.List(ctx, into, opts...)
}

func TestTake_GivesUpOnABusyCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, small(1))
		reader := &busy{Reader: w.h.Cached, slots: w.slots}
		w.h.Cached, w.h.Live = reader, reader
		assert.False(t, w.Take(t.Context(), bind("web")))
		assert.Equal(t, int32(maxTries), reader.lists.Load())
		running := w.start(t.Context(), bind("web"))
		assertWaits(t, "the view is outdated again and again", running)
		assert.Equal(t, int32(2*maxTries), reader.lists.Load())
		<-time.After(retryTime)
		assertWaits(t, "the bind tries again", running)
		assert.Equal(t, int32(3*maxTries), reader.lists.Load())
		reader.idle.Store(true)
		<-time.After(retryTime)
		assertTaken(t, "the view is current", running)
	})
}
