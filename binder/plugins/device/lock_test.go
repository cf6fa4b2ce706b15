// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

// lockCase has two pods in two replicas: attempt a of pod one holds the lock of node-a, and
// attempt b of pod two waits for it.
type lockCase struct {
	*testing.T
	s        *server
	one, two *Plugin
	a, b     *framework.BindContext
	// result receives the decision for pod two.
	result chan binder.Decision
}

// lockTest runs f in a bubble while pod two waits for the lock.
func lockTest(t *testing.T, f func(c *lockCase)) {
	t.Helper()
	lockTestAhead(t, 0, f)
}

// lockTestAhead is lockTest with a clock of the holder's replica that is ahead.
func lockTestAhead(t *testing.T, by time.Duration, f func(c *lockCase)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		first, second := podNamed("one"), podNamed("two")
		s := newServer(t, first, second, gen.Node("node-a"))
		c := &lockCase{
			T: t, s: s, one: replicaOf(s), two: replicaOf(s), result: make(chan binder.Decision, 1),
			a: bindOf(first, "a", gen.Annotation(lockIt, "true"), gen.Annotation(gpu, "GPU-1")),
			b: bindOf(second, "b", gen.Annotation(lockIt, "true"), gen.Annotation(gpu, "GPU-2")),
		}
		c.one.h.Clock = wrong{by: by}
		require.NoError(t, prepare(t.Context(), c.one, c.a))
		verdict, err := preFlight(t.Context(), c.two, c.b)
		require.NoError(t, err)
		assert.Equal(t, framework.Wait{
			Object: framework.Object{Kind: "Node", Name: "node-a"}, For: "the lock that pod default/one holds on the node", Until: time.Now().Add(timeout),
		}, verdict.Wait, "the wait ends when the lock expires")
		two := frameworktest.Around(t, s.api, s.hub, c.two.h, c.two)
		go func() {
			c.result <- two.Post(t.Context(), second, "node-a", gen.Annotation(lockIt, "true"), gen.Annotation(gpu, "GPU-2"))
		}()
		c.waits()
		f(c)
	})
}

func (c *lockCase) waits() {
	c.Helper()
	synctest.Wait()
	require.Empty(c, c.result, "pod two waits")
	assert.Equal(c, "one", string(c.s.record().Lock.UID))
	assert.NotContains(c, held(c.s), "two", "a waiting pod holds no devices")
}

// goesOn checks that pod two gets the lock with the next pass of its call.
func (c *lockCase) goesOn() {
	c.Helper()
	pass(50 * time.Millisecond)
	synctest.Wait()
	require.Len(c, c.result, 1, "pod two must get the lock")
	require.Nil(c, (<-c.result).Err)
	assert.Equal(c, "two", string(c.s.record().Lock.UID))
}

// pass advances the clock of the bubble.
func pass(d time.Duration) { <-time.After(d) }

func TestLock_IsReleasedByPostBind(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		c.s.bind(c.a)
		c.waits()
		require.NoError(c, c.s.postBind(c.one, c.a))
		c.goesOn()
		assert.Equal(c, "[a: GPU-1 (gpu)] bound", held(c.s)["one"])
	})
}

func TestLock_IsReleasedByTheLastAttempt(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		again := bindOf(c.a.Pod, "c", gen.Annotation(lockIt, "true"))
		require.NoError(c, prepare(c.Context(), c.two, again), "attempts at the same bind share the lock")
		require.NoError(c, c.one.PreBindRollBack(c.Context(), c.a.Mark()))
		c.waits()
		require.NoError(c, c.two.PreBindRollBack(c.Context(), again.Mark()))
		c.goesOn()
	})
}

func TestLock_Expires(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		began := time.Now()
		require.Nil(c, (<-c.result).Err)
		assert.InDelta(c, timeout, time.Since(began), float64(time.Second))
		assert.Equal(c, "two", string(c.s.record().Lock.UID))
		assert.Contains(c, held(c.s), "one", "the devices do not expire")

		require.Error(c, confirm(c.Context(), c.one, c.a), "the first bind has lost the lock")
		require.NoError(c, c.one.PreBindRollBack(c.Context(), c.a.Mark()))
		assert.Equal(c, "two", string(c.s.record().Lock.UID), "only a holder can release the lock")
	})
}

// wrong is a clock with an offset.
type wrong struct {
	clock.RealClock
	by time.Duration
}

func (w wrong) Now() time.Time { return time.Now().Add(w.by) }

func (w wrong) Since(t time.Time) time.Duration { return w.Now().Sub(t) }

func TestLock_DoesNotDependOnSynchronizedClocks(t *testing.T) {
	for name, by := range map[string]time.Duration{"HolderBehind": -time.Hour, "HolderAhead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			lockTestAhead(t, by, func(c *lockCase) {
				pass(timeout - time.Second)
				c.waits()
				pass(3 * time.Second)
				c.goesOn()
			})
		})
	}
}

func TestSeenLocks_ForgetOldLocks(t *testing.T) {
	virtual := testingclock.NewFakeClock(noon)
	p := New(framework.Handle{Clock: virtual}, &Arguments{NodeLockTimeout: metav1.Duration{Duration: time.Hour}})
	a, b := seenLock{node: "a"}, seenLock{node: "b"}
	assert.Equal(t, noon, p.since(a, virtual.Now()))
	virtual.Step(time.Minute)
	assert.Equal(t, noon, p.since(a, virtual.Now()), "the lock is unchanged")
	virtual.Step(2 * time.Hour)
	p.since(b, virtual.Now())
	assert.Equal(t, 1, p.seenLocks.Len())
}

// A lock that ends before the API server must have decided on the bind counts as expired.
// The repeated call renews it.
func TestLock_LastsForTheWholeBind(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		pass(timeout - framework.BindSettles - time.Second)
		require.NoError(c, confirm(c.Context(), c.one, c.a), "the lock lasts long enough")

		pass(3 * time.Second)
		require.Error(c, confirm(c.Context(), c.one, c.a), "the lock ends too early")
		require.NoError(c, prepare(c.Context(), c.one, c.a))
		c.waits()
		pass(timeout - 2*time.Second)
		c.waits()
		pass(3 * time.Second)
		synctest.Wait()
		require.Len(c, c.result, 1, "pod two waits until the renewed lock expires")
	})
}

// A conflict cannot end by waiting for the lock, during which other plugins would write.
func TestLock_ConflictComesFirst(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		third := bindOf(podNamed("three"), "d", gen.Annotation(lockIt, "true"), gen.Annotation(gpu, "GPU-1"))
		verdict, err := preFlight(c.Context(), c.one, third)
		require.NoError(c, err)
		assert.Empty(c, verdict.Wait, "PreBind must reject the bind")
		assert.NotEmpty(c, verdict.Writes)
		err = c.one.PreBind(c.Context(), third)
		assert.True(c, frameworktest.IsKind(err, framework.KindRefuse), "%v", err)
		require.NoError(c, c.one.PreBindRollBack(c.Context(), c.a.Mark()))
		c.goesOn()
	})
}

func TestLock_ByArgument(t *testing.T) {
	s := newServer(t, podNamed("one"), podNamed("two"))
	p := replicaOf(s)
	p.args.NodeLocks = true
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("one"), "a", gen.Annotation(gpu, "GPU-1"))))
	assert.Equal(t, "one", string(s.record().Lock.UID))
	require.NoError(t, confirm(t.Context(), p, bindOf(podNamed("two"), "b")), "the pod requests no devices")
}
