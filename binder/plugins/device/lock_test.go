// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// lockCase has pod one, whose attempt a holds the lock of node-a, and pod two, whose
// attempt b wants it, in another replica.
type lockCase struct {
	*testing.T
	s        *server
	one, two *Plugin
	a, b     *framework.BindContext
	// result is of two's PreBind.
	result chan error
}

// lockTest runs f when two waits for the lock, in a bubble of its own.
func lockTest(t *testing.T, f func(c *lockCase)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		first, second := podNamed("one"), podNamed("two")
		s := newServer(t, first, second)
		c := &lockCase{
			T: t, s: s, one: replicaOf(s), two: replicaOf(s), result: make(chan error, 1),
			a: bindOf(first, "a", gen.Annotation(lockIt, "true"), gen.Annotation(gpu, "GPU-1")),
			b: bindOf(second, "b", gen.Annotation(lockIt, "true"), gen.Annotation(gpu, "GPU-2")),
		}
		require.NoError(t, prepare(t.Context(), c.one, c.a))
		next, err := preFlight(t.Context(), c.two, c.b)
		require.NoError(t, err)
		assert.Equal(t, framework.Run, next)
		assert.Contains(t, c.b.Intents(), "device would lock Node node-a for the bind, and wait while another bind holds the lock")
		go func() { c.result <- c.two.PreBind(t.Context(), c.b) }()
		c.waits()
		waiting := c.b.ReportedWait()
		assert.Equal(t, "Node node-a", waiting.Object.String())
		assert.Equal(t, "the lock that pod default/one holds on the node", waiting.For)
		assert.Equal(t, timeout, time.Until(waiting.Until), "the lock expires then")
		f(c)
	})
}

func (c *lockCase) waits() {
	c.Helper()
	synctest.Wait()
	require.Empty(c, c.result, "two waits")
	assert.Equal(c, "one", string(c.s.record("node-a").Lock.UID))
	assert.NotContains(c, held(c.s), "two", "who waits holds nothing")
}

// goesOn says that two gets the lock without any time going by.
func (c *lockCase) goesOn() {
	c.Helper()
	synctest.Wait()
	require.Len(c, c.result, 1, "two goes on")
	require.NoError(c, <-c.result)
	require.NoError(c, confirm(c.Context(), c.two, c.b))
	assert.Equal(c, "two", string(c.s.record("node-a").Lock.UID))
}

// pass lets time go by in the bubble.
func pass(d time.Duration) { <-time.After(d) }

func TestLockIsReleasedByRollBack(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		require.NoError(c, c.one.PreBindRollBack(c.Context(), c.a))
		assert.Equal(c, []string{"released its devices", "released the node lock"}, c.a.Undone())
		c.goesOn()
	})
}

func TestLockIsReleasedByPostBind(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		c.s.bind(c.a)
		c.waits()
		c.one.PostBind(c.Context(), c.a)
		c.goesOn()
		assert.Equal(c, "[a: GPU-1 (gpu)] bound", held(c.s)["one"])
	})
}

// TestLockOfTwoAttempts is released with the second.
func TestLockOfTwoAttempts(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		again := bindOf(c.a.Pod, "c", gen.Annotation(lockIt, "true"))
		require.NoError(c, prepare(c.Context(), c.two, again), "a pod does not wait for itself")
		require.NoError(c, c.one.PreBindRollBack(c.Context(), c.a))
		c.waits()
		require.NoError(c, c.two.PreBindRollBack(c.Context(), recovered(again)))
		c.goesOn()
	})
}

// TestLockExpires at its time, and its holder notices.
func TestLockExpires(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		began := time.Now()
		require.NoError(c, <-c.result)
		assert.InDelta(c, timeout, time.Since(began), float64(time.Second))
		assert.Equal(c, "two", string(c.s.record("node-a").Lock.UID))
		assert.Contains(c, held(c.s), "one", "its devices are still its own")

		err := confirm(c.Context(), c.one, c.a)
		assert.True(c, framework.IsKind(err, framework.KindWait), "%v", err)
		assert.ErrorContains(c, err, "expired")
		require.NoError(c, c.one.PreBindRollBack(c.Context(), c.a))
		assert.Equal(c, "two", string(c.s.record("node-a").Lock.UID), "who lost it cannot release it")
		assert.Equal(c, []string{"released its devices"}, c.a.Undone())
	})
}

// wrong is a clock that goes as it should, and shows another time.
type wrong struct {
	clock.RealClock
	by time.Duration
}

func (w wrong) Now() time.Time { return time.Now().Add(w.by) }

func (w wrong) Since(t time.Time) time.Duration { return w.Now().Sub(t) }

// TestLockAndWrongClocks: a lock is good for its time, by whatever clocks it was taken
// and is looked at.
func TestLockAndWrongClocks(t *testing.T) {
	for name, by := range map[string]time.Duration{"HolderBehind": -time.Hour, "HolderAhead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := podNamed("one"), podNamed("two")
				s := newServer(t, first, second)
				one, two := replicaOf(s), replicaOf(s)
				one.h.Clock = wrong{by: by}
				a, b := bindOf(first, "a", gen.Annotation(lockIt, "true")), bindOf(second, "b", gen.Annotation(lockIt, "true"))
				require.NoError(t, prepare(t.Context(), one, a))
				result := make(chan error, 1)
				go func() { result <- two.PreBind(t.Context(), b) }()
				pass(timeout - time.Second)
				synctest.Wait()
				require.Empty(t, result, "two waits")
				assert.Equal(t, "one", string(s.record("node-a").Lock.UID))
				pass(3 * time.Second)
				synctest.Wait()
				require.Len(t, result, 1, "two goes on")
				require.NoError(t, <-result)
				assert.Equal(t, "two", string(s.record("node-a").Lock.UID))
			})
		})
	}
}

// TestSightsAreForgotten: of nodes that nobody asks for any more.
func TestSightsAreForgotten(t *testing.T) {
	s := sights{of: map[string]sight{}}
	locked := func(node string) *record { return &record{Node: node, Lock: &lock{UID: "p", Expires: noon}} }
	assert.Equal(t, noon, s.since(locked("a"), noon, time.Hour))
	assert.Equal(t, noon, s.since(locked("a"), noon.Add(time.Minute), time.Hour), "it is as it was")
	s.since(locked("b"), noon.Add(time.Hour), time.Hour)
	assert.Len(t, s.of, 2)
	s.since(locked("c"), noon.Add(time.Hour+1), time.Hour)
	assert.Len(t, s.of, 2)
	assert.NotContains(t, s.of, "a")
	s.since(&record{Node: "b"}, noon.Add(time.Hour+1), time.Hour)
	assert.NotContains(t, s.of, "b", "it is not locked any more")
}

// TestLockIsForTheWholeBind: one that ends before the API server can be done is as
// good as expired, and is renewed by the repeated call.
func TestLockIsForTheWholeBind(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		pass(timeout - framework.BindSettles - time.Second)
		next, err := preFlight(c.Context(), c.one, c.a)
		require.NoError(c, err)
		assert.Equal(c, framework.Skip, next, "there is time enough")
		require.NoError(c, confirm(c.Context(), c.one, c.a))

		pass(3 * time.Second)
		err = confirm(c.Context(), c.one, c.a)
		assert.True(c, framework.IsKind(err, framework.KindWait), "%v", err)
		require.NoError(c, prepare(c.Context(), c.one, c.a))
		c.waits()
		pass(timeout - 2*time.Second)
		c.waits()
		pass(3 * time.Second)
		synctest.Wait()
		require.Len(c, c.result, 1, "two waits for as long as it was renewed for")
	})
}

// TestLockOfAPodThatIsGone is taken from it when a bind comes to look, and at the
// latest when it expires.
func TestLockOfAPodThatIsGone(t *testing.T) {
	cases := map[string]struct {
		reason string
		then   func(c *lockCase)
	}{
		"Deleted":   {reason: "it is gone", then: func(c *lockCase) { c.s.delete(c.a.Pod) }},
		"Bound":     {reason: "a lock is for the bind only", then: func(c *lockCase) { c.s.bind(c.a) }},
		"Finished":  {reason: "it has ended", then: func(c *lockCase) { c.s.bind(c.a); c.s.finish(c.a.Pod) }},
		"Recreated": {reason: "the new one has no lock", then: func(c *lockCase) { recreate(c.s, c.one, c.a) }},
	}
	for name, tc := range cases {
		for _, device := range []string{"GPU-3", "GPU-1"} {
			t.Run(name+device, func(t *testing.T) {
				lockTest(t, func(c *lockCase) {
					tc.then(c)
					third := podNamed("three")
					require.NoError(c, c.s.Create(c.Context(), third))
					bc := bindOf(third, "d", gen.Annotation(lockIt, "true"), gen.Annotation(gpu, device))
					began := time.Now()
					err := prepare(c.Context(), c.one, bc)
					assert.Zero(c, time.Since(began), "nobody waits")
					if name == "Bound" && device == "GPU-1" {
						assert.True(c, framework.IsKind(err, framework.KindRefuse), "its devices are its own: %v", err)
					} else {
						require.NoError(c, err, tc.reason)
						require.NoError(c, c.one.PreBindRollBack(c.Context(), bc))
						c.goesOn()
					}
				})
			})
		}
	}
}

func TestLockWaitEnds(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		ctx, cancel := context.WithCancelCause(c.Context())
		third := podNamed("three")
		result := make(chan error)
		go func() {
			result <- c.one.PreBind(ctx, bindOf(third, "d", gen.Annotation(lockIt, "true")))
		}()
		synctest.Wait()
		errBudget := errors.New("the budget is spent")
		cancel(errBudget)
		assert.ErrorIs(c, <-result, errBudget)
		require.NoError(c, c.one.PreBindRollBack(c.Context(), c.a))
		c.goesOn()
	})
}

// TestConflictComesBeforeTheLock: there is nothing to wait for.
func TestConflictComesBeforeTheLock(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		third := podNamed("three")
		err := c.one.PreBind(c.Context(), bindOf(third, "d", gen.Annotation(lockIt, "true"), gen.Annotation(gpu, "GPU-1")))
		assert.True(c, framework.IsKind(err, framework.KindRefuse), "%v", err)
		require.NoError(c, c.one.PreBindRollBack(c.Context(), c.a))
		c.goesOn()
	})
}

// TestLockWithACacheThatIsBehind: it says that the lock is another's, or free.
func TestLockWithACacheThatIsBehind(t *testing.T) {
	lockTest(t, func(c *lockCase) {
		cached := newLagging(c.s)
		behind := pluginOn(c.s, cached, &line{server: c.s}, cached.hub)
		ctx, cancel := context.WithCancel(c.Context())
		result := make(chan error)
		third := bindOf(podNamed("three"), "d", gen.Annotation(lockIt, "true"))
		go func() { result <- behind.PreBind(ctx, third) }()
		synctest.Wait()
		assert.Equal(c, "the lock that pod default/one holds on the node", third.ReportedWait().For, "the cache has no record at all")
		cancel()
		assert.ErrorIs(c, <-result, context.Canceled)

		require.NoError(c, cached.sync(c.Context()))
		require.NoError(c, c.one.PreBindRollBack(c.Context(), c.a))
		c.goesOn()
		require.NoError(c, c.two.PreBindRollBack(c.Context(), c.b))
		require.NoError(c, behind.PreBind(c.Context(), third), "the cache still has it locked by one")
	})
}

// TestLockByOption: every pod that names devices takes it, and no other.
func TestLockByOption(t *testing.T) {
	s := newServer(t, podNamed("one"), podNamed("two"))
	p := replicaOf(s, withLocks)
	require.NoError(t, prepare(t.Context(), p, bindOf(podNamed("one"), "a", gen.Annotation(gpu, "GPU-1"))))
	assert.Equal(t, "one", string(s.record("node-a").Lock.UID))
	next, err := preFlight(t.Context(), p, bindOf(podNamed("two"), "b"))
	require.NoError(t, err)
	assert.Equal(t, framework.Skip, next)
}

// TestManyBindsOneLock: one after the other, across two replicas, and none is
// forgotten.
func TestManyBindsOneLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 12
		s := newServer(t)
		replicas := []*Plugin{replicaOf(s, withLocks), replicaOf(s, withLocks)}
		results := make(chan error, pods)
		for i := range pods {
			pod := podNamed(string(rune('a' + i)))
			require.NoError(t, s.Create(t.Context(), pod))
			go func() {
				p, bc := replicas[i%2], bindOf(pod, pod.Name, gen.Annotation(gpu, "GPU-"+pod.Name))
				if err := prepare(t.Context(), p, bc); err != nil {
					results <- err
					return
				}
				if rec := s.record("node-a"); rec.Lock == nil || rec.Lock.UID != pod.UID {
					results <- errors.New("another has the lock")
					return
				}
				pass(time.Second)
				s.bind(bc)
				p.PostBind(t.Context(), bc)
				results <- nil
			}()
		}
		began := time.Now()
		for range pods {
			require.NoError(t, <-results)
		}
		assert.Equal(t, pods*time.Second, time.Since(began), "nobody waits for longer than the others take")
		assert.Len(t, held(s), pods)
		assert.Nil(t, s.record("node-a").Lock)
	})
}
