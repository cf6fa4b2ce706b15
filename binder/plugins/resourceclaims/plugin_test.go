// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// between runs f before the first request of the kind, like a client that is faster.
func between(r *replica, verb string, f func()) {
	r.conn.Before = firstRequest(verb, func() error { f(); return nil })
}

// setup returns a claim that is allocated and not reserved, its pod, and two replicas.
func setup(t *testing.T, options ...claimOption) (s *apiServer, pod *corev1.Pod, one, two *replica) {
	t.Helper()
	pod = thePod(uses("c"))
	s = newAPI(gen.Node("node-a"), gen.Node("node-b"), pod, theClaim("c", append([]claimOption{allocated("node-a", "gpu-0"), anywhere}, options...)...))
	return s, pod, newReplica(t, s), newReplica(t, s)
}

func TestPreBind_APIServerFails(t *testing.T) {
	cases := map[string]struct {
		reason string
		fail   func(fakeapi.Call) error
		want   framework.Kind
	}{
		"Reservation": {reason: "the write can have succeeded", fail: firstWrite("patch status", apierrors.NewServiceUnavailable("restarting")), want: framework.KindWait},
		"Forbidden":   {reason: "waiting does not grant permissions", fail: firstWrite("patch status", errDown), want: framework.KindInternal},
		"Invalid": {reason: "the permission for resourceclaims/binding can be missing", fail: func(w fakeapi.Call) error {
			if w.Verb == "patch status" {
				return fakeapi.Invalid("resourceclaims/binding")
			}
			return nil
		}, want: framework.KindInternal},
		"Gone":   {reason: "the claim was deleted", fail: firstWrite("patch status", fakeapi.NotFound("ResourceClaim", "c")), want: framework.KindRefuse},
		"Denied": {reason: "waiting does not satisfy an admission policy", fail: firstWrite("patch", fakeapi.Invalid("denied request")), want: framework.KindInternal},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, pod, r, _ := setup(t)
			r.conn.Before = tc.fail
			bc := bind(pod, "node-a", "here-1")
			err := r.PreBind(t.Context(), bc)
			require.Error(t, err)
			assert.Equal(t, tc.want, framework.AsError(Name, err).Kind, "%s: %v", tc.reason, err)
			r.conn.Before = nil
			require.NoError(t, r.PreBindRollBack(t.Context(), bc.Mark()))
			assert.Empty(t, users(s.claim()))
			assert.Empty(t, unsettled(s.claim()))
		})
	}
}

// The API server applies a reservation after the roll-back.
func TestReserve_AfterTheRollBackFails(t *testing.T) {
	s, pod, r, _ := setup(t)
	bc := bind(pod, "node-a", "here-1")
	var late *resourcev1.ResourceClaim
	r.conn.Before = firstWrite("patch status", apierrors.NewTimeoutError("slow", 1))
	require.Error(t, r.PreBind(t.Context(), bc))
	r.conn.Before = nil
	late = s.claim()
	require.NotEmpty(t, markOn(bc.Mark(), late))
	require.NoError(t, r.PreBindRollBack(t.Context(), bc.Mark()))
	_, err := r.reserve(t.Context(), bc.Mark(), late, false)
	require.Error(t, err, "the write requires the mark")
	assert.Empty(t, users(s.claim()))
}

// kube-scheduler reserves the claim between two requests. Its reservation stays.
func TestRollBack_KeepsTheReservationOfAScheduler(t *testing.T) {
	for name, at := range map[string]string{"BeforeTheMark": "patch", "AfterTheMark": "patch status"} {
		t.Run(name, func(t *testing.T) {
			s, pod, r, _ := setup(t)
			between(r, at, func() { s.change("kube-scheduler", reservedTo("web")) })
			bc := bind(pod, "node-a", "here-1")
			require.NoError(t, r.PreBind(t.Context(), bc))
			assert.Equal(t, []string{"web"}, users(s.claim()), "the claim has one reservation for the pod")
			require.NoError(t, r.PreBindRollBack(t.Context(), bc.Mark()))
			assert.Equal(t, []string{"web"}, users(s.claim()))
			assert.Empty(t, unsettled(s.claim()), "the roll-back removes the mark")
		})
	}
	t.Run("SchedulerGivesUp", func(t *testing.T) {
		s, pod, r, _ := setup(t)
		bc := bind(pod, "node-a", "here-1")
		require.NoError(t, r.PreBind(t.Context(), bc))
		s.change("kube-scheduler", func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = nil })
		require.True(t, frameworktest.IsKind(r.confirm(t.Context(), bc), framework.KindWait), "the next pass notices the change")
		require.NoError(t, r.PreBind(t.Context(), bind(pod, "node-a", "here-1")))
		assert.Equal(t, []string{"web"}, users(s.claim()), "the next call reserves the claim again")
	})
}

// Two replicas work on the bind of one pod.
func TestTwoAttempts_AtOneBind(t *testing.T) {
	begin := func(t *testing.T) (*apiServer, *replica, *replica, *framework.BindContext, *framework.BindContext) {
		t.Helper()
		s, pod, one, two := setup(t)
		a, b := bind(pod, "node-a", "one-1"), bind(pod, "node-b", "two-1")
		require.NoError(t, one.PreBind(t.Context(), a))
		require.NoError(t, two.PreBind(t.Context(), b), "another attempt can remove the reservation")
		require.Len(t, unsettled(s.claim()), 2, "the second attempt marks the claim too")
		return s, one, two, a, b
	}
	t.Run("FirstFails", func(t *testing.T) {
		s, one, two, a, b := begin(t)
		require.NoError(t, one.PreBindRollBack(t.Context(), a.Mark()))
		assert.Equal(t, []string{"web"}, users(s.claim()), "the second attempt relies on the reservation")
		require.NoError(t, two.confirm(t.Context(), b))
		require.NoError(t, two.PreBindRollBack(t.Context(), b.Mark()))
		assert.Empty(t, users(s.claim()), "no attempt relies on the reservation")
	})
	t.Run("BothFailAtOnce", func(t *testing.T) {
		s, one, two, a, b := begin(t)
		between(one, "patch", func() { require.NoError(t, two.PreBindRollBack(t.Context(), b.Mark())) })
		require.NoError(t, one.PreBindRollBack(t.Context(), a.Mark()))
		assert.Empty(t, users(s.claim()), "the last attempt removes the reservation")
		assert.Empty(t, unsettled(s.claim()))
	})
	t.Run("SecondComesWhileFirstGoes", func(t *testing.T) {
		s, pod, one, two := setup(t)
		a, b := bind(pod, "node-a", "one-1"), bind(pod, "node-b", "two-1")
		require.NoError(t, one.PreBind(t.Context(), a))
		between(one, "patch status", func() { require.NoError(t, two.PreBind(t.Context(), b)) })
		require.NoError(t, one.PreBindRollBack(t.Context(), a.Mark()))
		assert.Equal(t, []string{"web"}, users(s.claim()), "the roll-back reads the claim again")
	})
	t.Run("FirstGoesWhileSecondMarks", func(t *testing.T) {
		s, pod, one, two := setup(t)
		a, b := bind(pod, "node-a", "one-1"), bind(pod, "node-b", "two-1")
		require.NoError(t, one.PreBind(t.Context(), a))
		between(two, "patch", func() { require.NoError(t, one.PreBindRollBack(t.Context(), a.Mark())) })
		require.NoError(t, two.PreBind(t.Context(), b))
		assert.Equal(t, []string{"web"}, users(s.claim()), "the second attempt reserves the claim itself")
	})
}

func TestPreFlight_ClaimIsGone(t *testing.T) {
	s, pod, r, _ := setup(t)
	bc := bind(pod, "node-a", "here-1")
	require.NoError(t, r.PreBind(t.Context(), bc))
	s.Remove(theClaim("c"))
	require.True(t, frameworktest.IsKind(r.confirm(t.Context(), bc), framework.KindRefuse), "the claim is gone")
	require.NoError(t, r.PostBind(t.Context(), bc.Mark(), nil))
	require.NoError(t, r.PreBindRollBack(t.Context(), bc.Mark()), "there is nothing to roll back")
	s.Put(theClaim("c", allocated("node-a", "gpu-1"), reservedTo("web"), func(c *resourcev1.ResourceClaim) { c.UID = "another" }))
	require.NoError(t, r.PreBindRollBack(t.Context(), bc.Mark()))
	assert.Equal(t, []string{"web"}, users(s.claim()), "a claim with another UID keeps its reservations")
}

// Two pods reserve a claim that has room for one.
func TestReserve_LastPlace(t *testing.T) {
	s, pod, r, _ := setup(t, full, func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor = c.Status.ReservedFor[:255] })
	between(r, "patch status", func() { s.change("kube-scheduler", reservedTo("db")) })
	err := r.PreBind(t.Context(), bind(pod, "node-a", "here-1"))
	require.True(t, frameworktest.IsKind(err, framework.KindRefuse), "%v", err)
	assert.Len(t, s.claim().Status.ReservedFor, 256)
}

// A dry run also shows that a device has failed before its claim is reserved, and PreBind reserves nothing.
func TestPreFlight_FailedBeforeReservation(t *testing.T) {
	pod := thePod(uses("c"))
	s := newAPI(gen.Node("node-a"), pod, theClaim("c", allocated("node-a", "gpu-0"), needs([]string{"Ready"}, []string{"Broken"}),
		says("gpu-0", map[string]metav1.ConditionStatus{"Broken": metav1.ConditionTrue})))
	_, err := newReplica(t, s).preFlight(t.Context(), bind(pod, "node-a", "here-1"))
	assert.True(t, frameworktest.IsKind(err, framework.KindRefuse), "%v", err)
}
