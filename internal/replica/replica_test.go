// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/fakeapi"
)

var errCut = errors.New("connection refused")

// cuttable is a client whose writes fail while cut is set.
func cuttable(stored *fakeapi.Clientset, cut *atomic.Bool) kubernetes.Interface {
	c := &fake.Clientset{}
	c.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if cut.Load() && a.GetVerb() != "list" {
			return true, nil, errCut
		}
		o, err := stored.Invokes(a, nil)
		return true, o, err
	})
	return c
}

func pass(d time.Duration) { <-time.After(d) }

// TestTrusted_Relations: the times of all replicas are consistent.
func TestTrusted_Relations(t *testing.T) {
	assert.LessOrEqual(t, trusted+framework.BindSettles, duration+work.Grace, "a bind is over before another replica rolls back")
	assert.Greater(t, trusted, (RequestTakes+renewal)+(RequestTakes+renewAgain)+RequestTakes, "a renewal may time out, and the next one is in time")
	assert.Less(t, blind, duration, "old observations are discarded before they count")
	assert.Less(t, 2*observeEvery, blind)
}

func newReplicas(t *testing.T, client kubernetes.Interface, id string) *Replicas {
	t.Helper()
	return New(Options{
		ID: id, Client: client, Namespace: "prebind-system", Clock: clock.RealClock{},
		Synced: func() bool { return true }, Status: func() (string, error) { return "", nil },
	})
}

func TestNewID(t *testing.T) {
	one, other := NewID(), NewID()
	assert.NotEqual(t, one, other)
}

// quiet is the context of the test without a log.
func quiet(t *testing.T) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

// crashedLease is the lease of a crashed replica.
func crashedLease(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	l := &coordinationv1.Lease{}
	l.Name, l.Labels = prefix+"crashed", map[string]string{label: "crashed"}
	_, err := c.CoordinationV1().Leases("prebind-system").Create(t.Context(), l, metav1.CreateOptions{})
	require.NoError(t, err)
}

// TestLiving_FollowsTheLeases: a replica lives while it renews its lease, and is dead some time
// after a crash, or at once after it removed its lease.
func TestLiving_FollowsTheLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fakeapi.NewClientset()
		crashedLease(t, client)
		observer, polite := newReplicas(t, client, "observer"), newReplicas(t, client, "polite")
		assert.Zero(t, observer.Count(), "the number is not known")
		politeCtx, stopPolite := context.WithCancel(quiet(t))
		left := make(chan struct{})
		go func() {
			defer close(left)
			_ = polite.Start(politeCtx)
		}()
		synctest.Wait()
		go func() { _ = observer.Start(quiet(t)) }()
		pass(observeEvery + time.Second)
		assertLiving := func(want ...string) {
			t.Helper()
			assert.ElementsMatch(t, want, slices.Collect(maps.Keys(observer.Living())))
			assert.Equal(t, len(want), observer.Count())
		}
		assertLiving("observer", "polite", "crashed") // A new lease may still be renewed.

		pass(time.Minute)
		assertLiving("observer", "polite")
		_, err := client.CoordinationV1().Leases("prebind-system").Get(t.Context(), prefix+"crashed", metav1.GetOptions{})
		require.Error(t, err, "its lease is removed")

		stopPolite()
		<-left
		_, held := polite.Term()
		assert.False(t, held, "a replica without a lease holds no term")
		pass(observeEvery + time.Second)
		assertLiving("observer")
	})
}

// TestLiving_WhileTheAPIServerIsAway: no replica can renew its lease, and old observations do not
// count.
func TestLiving_WhileTheAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fakeapi.NewClientset()
		var away atomic.Bool
		client.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, errCut
		})
		crashedLease(t, client)
		observer := newReplicas(t, client, "observer")
		go func() { _ = observer.Start(quiet(t)) }()
		pass(duration - time.Second)
		away.Store(true)
		pass(blind + observeEvery)
		assert.Nil(t, observer.Living(), "old observations are not returned")

		away.Store(false)
		pass(duration - observeEvery)
		assert.Contains(t, observer.Living(), "crashed", "the time starts again with %s", duration)
		pass(3 * observeEvery)
		living := observer.Living()
		assert.NotNil(t, living)
		assert.NotContains(t, living, "crashed")
	})
}

// TestCount_IncludesThisReplica: the lease of this replica may not exist yet.
func TestCount_IncludesThisReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fakeapi.NewClientset()
		client.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errCut })
		r := newReplicas(t, client, "one")
		go func() { _ = r.Start(quiet(t)) }()
		synctest.Wait()
		assert.Equal(t, 1, r.Count())
	})
}

// TestTerm_EndsWithTheLease: a term ends with a late renewal, and if another client removes the
// lease.
func TestTerm_EndsWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fakeapi.NewClientset()
		var cut atomic.Bool
		r := newReplicas(t, cuttable(client, &cut), "a")
		of := func() []any {
			synctest.Wait()
			term, held := r.Term()
			return []any{term, held}
		}
		assert.Equal(t, []any{int64(0), false}, of(), "there is no lease yet")
		go func() { _ = r.Start(quiet(t)) }()
		assert.Equal(t, []any{int64(1), true}, of())

		cut.Store(true)
		pass(trusted)
		assert.Equal(t, []any{int64(1), true}, of())
		pass(time.Millisecond)
		assert.Equal(t, []any{int64(1), false}, of(), "another replica may roll back")
		cut.Store(false)
		pass(renewal)
		assert.Equal(t, []any{int64(2), true}, of())

		cut.Store(true)
		pass(trusted - renewal - time.Second)
		cut.Store(false)
		pass(renewal)
		assert.Equal(t, []any{int64(2), true}, of(), "a short interruption does not end the term")

		require.NoError(t, client.CoordinationV1().Leases("prebind-system").Delete(t.Context(), prefix+"a", metav1.DeleteOptions{}))
		pass(renewal)
		assert.Equal(t, []any{int64(3), true}, of(), "another replica considers this one dead")
	})
}

// TestHeld_NamesTheState: before the first renewal, no renewal has failed.
func TestHeld_NamesTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplicas(t, fakeapi.NewClientset(), "new")
		require.ErrorContains(t, r.Held(), "has not written its lease prebind-system/prebind-replica-new yet")
		require.NoError(t, r.renew(t.Context()))
		require.NoError(t, r.Held())
		<-time.After(trusted + time.Second)
		assert.ErrorContains(t, r.Held(), "the API server has not answered the renewal of lease prebind-system/prebind-replica-new for more than")
	})
}

// TestHeld_RejectedRenewals: a replica whose renewal was rejected holds no term, and can be ready.
func TestHeld_RejectedRenewals(t *testing.T) {
	forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), "a", nil)
	webhook := apierrors.NewInternalError(errors.New(`failed calling webhook "other.example.com"`))
	cases := map[string]struct {
		reason string
		// renewed says that an earlier renewal succeeded.
		renewed bool
		err     error
		says    string
	}{
		"Webhook":        {reason: "another webhook can reject the renewals of all replicas, and need a bind to come back", renewed: true, err: webhook},
		"FirstWebhook":   {reason: "the same holds for a new replica", err: webhook},
		"Forbidden":      {reason: "a lost permission does not stop binds without writes", renewed: true, err: forbidden},
		"Unauthorized":   {reason: "the token is not valid, so the replica reads nothing", renewed: true, err: apierrors.NewUnauthorized("no"), says: "has not answered"},
		"FirstForbidden": {reason: "a rollout stops if the role is missing", err: forbidden, says: "has not written its lease"},
		"FirstCut":       {reason: "the API server has not answered", err: errCut, says: "has not written its lease"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fakeapi.NewClientset()
				r := newReplicas(t, client, "a")
				if tc.renewed {
					require.NoError(t, r.renew(t.Context()))
				}
				client.PrependReactor("patch", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
				<-time.After(trusted + time.Second)
				require.ErrorIs(t, r.renew(t.Context()), tc.err)
				_, held := r.Term()
				assert.False(t, held, "other replicas can roll back its writes")
				if tc.says == "" {
					assert.NoError(t, r.Held(), tc.reason)
					return
				}
				assert.ErrorContains(t, r.Held(), tc.says, tc.reason)
			})
		})
	}
}

// suspended is the clock of a machine that was suspended: the wall time ran, and the monotonic time stood.
type suspended struct {
	clock.RealClock
	wall time.Duration
}

func (s *suspended) Now() time.Time { return time.Now().Add(s.wall) }

func (s *suspended) Since(t time.Time) time.Duration { return s.Now().Sub(t) - s.wall }

// After a suspension, another replica can have rolled back the writes of the term.
func TestTerm_EndsWhileSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &suspended{}
		r := newReplicas(t, fakeapi.NewClientset(), "a")
		r.o.Clock = s
		require.NoError(t, r.renew(t.Context()))
		first, held := r.Term()
		require.True(t, held)
		s.wall = trusted + time.Second
		_, held = r.Term()
		assert.False(t, held)
		assert.NoError(t, r.Held(), "calls without writes are answered")
		require.NoError(t, r.renew(t.Context()))
		second, held := r.Term()
		assert.True(t, held)
		assert.Greater(t, second, first, "a new term begins")
		s.wall = 0
		_, held = r.Term()
		assert.True(t, held, "a clock that is set back ends no term")
	})
}

// TestLeads: the live replica with the smallest ID leads, if its caches have been filled.
func TestLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fakeapi.NewClientset()
		var cut, blinded, synced atomic.Bool
		client.PrependReactor("list", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return blinded.Load(), nil, errCut
		})
		one, other := newReplicas(t, cuttable(client, &cut), "one"), newReplicas(t, client, "other")
		leaders := func() []bool { return []bool{one.Leads(), other.Leads()} }
		assert.Equal(t, []bool{true, true}, leaders(), "without an election, every replica leads")
		one.o.Elect, other.o.Elect, one.o.Synced = true, true, synced.Load
		assert.Equal(t, []bool{false, false}, leaders(), "no lease was read")
		older := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: prefix + "0.1", Labels: map[string]string{label: "0.1"}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("0.1")},
		}
		leases := client.CoordinationV1().Leases(one.o.Namespace)
		_, err := leases.Create(t.Context(), older, metav1.CreateOptions{})
		require.NoError(t, err)
		go func() { _ = other.Start(quiet(t)) }()
		pass(observeEvery + time.Second)
		assert.Equal(t, []bool{false, true}, leaders(), "a replica of 0.1 does not lead")
		require.NoError(t, leases.Delete(t.Context(), older.Name, metav1.DeleteOptions{}))
		go func() { _ = one.Start(quiet(t)) }()
		pass(3 * observeEvery)
		assert.Equal(t, []bool{false, true}, leaders(), "a replica that may never fill its caches does not lead")
		assert.Equal(t, 2, other.Count(), "it is alive")
		synced.Store(true)
		pass(2 * observeEvery)
		assert.Equal(t, []bool{true, false}, leaders())
		cut.Store(true)
		pass(duration + 2*renewal)
		assert.Equal(t, []bool{false, true}, leaders(), "a replica that cannot renew its lease stops to lead")
		cut.Store(false)
		pass(duration)
		assert.Equal(t, []bool{true, false}, leaders())
		blinded.Store(true)
		pass(blind)
		assert.Equal(t, []bool{false, false}, leaders(), "old reads do not count")
	})
}
