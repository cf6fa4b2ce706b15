// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

func TestOwns(t *testing.T) {
	cases := map[string]struct {
		reason string
		claim  *resourcev1.ResourceClaim
		text   string
	}{
		"Owned":      {reason: "Prebind allocates the classes of all requests", claim: theClaim("c")},
		"Listed":     {reason: "Prebind allocates the classes of all alternatives", claim: theClaim("c", firstOf(1, 2))},
		"OtherClass": {reason: "a scheduler can allocate these devices at the same time", claim: theClaim("c", ofOtherClass), text: `"tpu", Prebind allocates only gpu`},
		"OneOfTwo":   {reason: "Prebind must allocate the classes of all alternatives", claim: theClaim("c", firstOf(1, 1), secondOf("tpu")), text: `"r/s1"`},
		"Admin":      {reason: "admin access is not an allocation", claim: theClaim("c", admin), text: "admin access"},
		"Capacity":   {reason: "Prebind does not count parts of devices", claim: theClaim("c", partOf), text: "part of the capacity of a device"},
		"PartOfList": {reason: "alternatives must request whole devices", claim: theClaim("c", firstOf(1), partInList), text: "part of the capacity of a device"},
		"Nothing":    {reason: "there is nothing to allocate", claim: theClaim("c", func(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests = nil }), text: "no requests"},
		"Unknown":    {reason: "a later Kubernetes version can add types", claim: theClaim("c", func(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests[0].Exactly = nil }), text: "unknown type"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := owns(sets.New(class), tc.claim)
			if tc.text == "" {
				require.NoError(t, err, tc.reason)
				return
			}
			assert.ErrorContains(t, err, tc.text, tc.reason)
		})
	}
}

func capacity() *resourcev1.CapacityRequirements {
	return &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")}}
}

func partOf(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests[0].Exactly.Capacity = capacity() }

func partInList(c *resourcev1.ResourceClaim) {
	c.Spec.Devices.Requests[0].FirstAvailable[0].Capacity = capacity()
}

// world returns a node with devices, and claims and pods that use them.
func world(t *testing.T, devices int, claims int, options ...claimOption) (*apiServer, []*corev1.Pod) {
	t.Helper()
	names := make([]string, 0, devices)
	for i := range devices {
		names = append(names, fmt.Sprintf("gpu-%d", i))
	}
	s := newAPI(gen.Node("node-a"), gen.Node("node-b"), deviceClass(), pool("node-a", names...))
	var pods []*corev1.Pod
	for i := range claims {
		name := fmt.Sprintf("c%d", i)
		s.Put(theClaim(name, options...))
		pod := thePod(fmt.Sprintf("web-%d", i), uses(name))
		s.Put(pod)
		pods = append(pods, pod)
	}
	return s, pods
}

// given returns how many claims have each allocated device.
func given(t testing.TB, s *apiServer) map[string]int {
	t.Helper()
	var list resourcev1.ResourceClaimList
	require.NoError(t, s.Cache().List(t.Context(), &list))
	all := map[string]int{}
	for i := range list.Items {
		if allocation := list.Items[i].Status.Allocation; allocation != nil {
			for _, r := range allocation.Devices.Results {
				all[r.Pool+"/"+r.Device]++
			}
		}
	}
	return all
}

// 100 pods compete for 40 devices, in two replicas whose caches are frozen.
func TestAllocate_InTwoReplicas(t *testing.T) {
	s, pods := world(t, 40, 100)
	replicas := []*replica{newAllocating(t, s), newAllocating(t, s)}
	for _, r := range replicas {
		r.cache.freeze()
	}
	var all sync.WaitGroup
	errs := make([]error, len(pods))
	for i, pod := range pods {
		all.Go(func() {
			errs[i] = replicas[i%2].PreBind(context.WithoutCancel(t.Context()), bind(pod, "node-a", fmt.Sprintf("here-%d", i)))
		})
	}
	all.Wait()
	refused := 0
	for _, err := range errs {
		if err != nil {
			require.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
			require.ErrorContains(t, err, "no free devices on node node-a match its requests")
			refused++
		}
	}
	assert.Equal(t, 60, refused)
	devices := given(t, s)
	assert.Len(t, devices, 40)
	for device, times := range devices {
		assert.Equal(t, 1, times, "%s was allocated twice", device)
	}
	assert.Len(t, records(t, s), 40)
}

// Many pods share one claim.
func TestAllocate_SharedClaim(t *testing.T) {
	s, _ := world(t, 4, 1)
	replicas := []*replica{newAllocating(t, s), newAllocating(t, s)}
	var all sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		pod := thePod(fmt.Sprintf("db-%d", i), uses("c0"))
		s.Put(pod)
		all.Go(func() {
			ctx := context.WithoutCancel(t.Context())
			for call := range 5 {
				// The engine repeats the call too.
				bc := bind(pod, "node-a", fmt.Sprintf("here-%d-%d", i, call))
				if errs[i] = replicas[i%2].PreBind(ctx, bc); !framework.IsKind(errs[i], framework.KindWait) {
					return
				}
				_ = replicas[i%2].PreBindRollBack(ctx, bc)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	assert.Len(t, s.claim("c0").Status.ReservedFor, 20)
	assert.Len(t, given(t, s), 1, "the claim is allocated once")
	assert.Len(t, records(t, s), 1)
}

// A scheduler changes the claim between two requests.
func TestAllocate_ClaimChanges(t *testing.T) {
	cases := map[string]struct {
		reason string
		verb   string
		n      int
		then   claimOption
		kind   framework.Kind
	}{
		"BeforeTheMark":    {reason: "the response to the mark shows the allocation", verb: "patch", n: 1, then: allocated("node-a", "gpu-3")},
		"BeforeFinalizer":  {reason: "the entry in the record is removed", verb: "patch", n: 2, then: allocated("node-a", "gpu-3")},
		"BeforeAllocation": {reason: "the entry in the record is removed", verb: "patch status", n: 1, then: allocated("node-a", "gpu-3")},
		"OtherNode":        {reason: "the allocation does not match the node", verb: "patch status", n: 1, then: allocated("node-b", "gpu-3"), kind: framework.KindRefuse},
		"Ends":             {reason: "the claim is being deleted", verb: "patch status", n: 1, then: meta1(gen.Terminating()), kind: framework.KindRefuse},
		"Note":             {reason: "the allocation is written again", verb: "patch status", n: 1, then: meta1(gen.Label("note", "x"))},
		"RolledBack":       {reason: "another replica removed the mark", verb: "patch status", n: 1, then: func(c *resourcev1.ResourceClaim) { c.Annotations = nil }, kind: framework.KindWait},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, pods := world(t, 4, 1)
			r := newAllocating(t, s)
			between(r, tc.verb, tc.n, func() { s.change("c0", "kube-scheduler", tc.then) })
			bc := bind(pods[0], "node-a", "here-1")
			err := r.PreBind(t.Context(), bc)
			if tc.kind != "" {
				require.Error(t, err, tc.reason)
				assert.Equal(t, tc.kind, framework.AsError(Name, err).Kind, "%s: %v", tc.reason, err)
				require.NoError(t, r.PreBindRollBack(t.Context(), bc))
				require.NoError(t, r.Tidy(t.Context()))
				assert.Empty(t, users(s.claim("c0")), tc.reason)
				assert.Empty(t, records(t, s), tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, []string{"web-0"}, users(s.claim("c0")), tc.reason)
			if name != "Note" {
				assert.Empty(t, records(t, s), tc.reason)
				require.NoError(t, r.PreBindRollBack(t.Context(), bc))
				assert.Equal(t, []string{"gpu-3"}, devices(s.claim("c0")), "the allocation of the scheduler stays")
			}
		})
	}
}

// A proxy repeats a write after it lost the response. The write succeeds, and the response
// is a conflict.
func TestAllocate_RepeatedWriteConflicts(t *testing.T) {
	s, pods := world(t, 1, 1)
	r := newAllocating(t, s)
	r.conn.After = nthWrite("patch status", 1, fakeapi.Conflict("ResourceClaim", "c0"))
	require.NoError(t, r.PreBind(t.Context(), bind(pods[0], "node-a", "here-1")))
	assert.Equal(t, map[string]string{"node-a/gpu-0": "c0"}, records(t, s), "the claim has the device, so the record keeps it")
}

func TestAllocate_LostResponse(t *testing.T) {
	for name, verb := range map[string]string{"Record": "create", "Finalizer": "patch", "Allocation": "patch status"} {
		t.Run(name, func(t *testing.T) {
			s, pods := world(t, 1, 2)
			r := newAllocating(t, s)
			n := 1
			if verb == "patch" {
				n = 2
			}
			r.conn.After = nthWrite(verb, n, apierrors.NewTimeoutError("lost", 1))
			bc := bind(pods[0], "node-a", "here-1")
			require.True(t, framework.IsKind(r.PreBind(t.Context(), bc), framework.KindWait))
			require.NoError(t, r.PreBindRollBack(t.Context(), bc))
			assert.Empty(t, given(t, s), "the roll-back deallocates the claim")
			require.NoError(t, r.PreBind(t.Context(), bind(pods[1], "node-a", "here-2")), "the device is free")
			assert.Equal(t, map[string]string{"node-a/gpu-0": "c1"}, records(t, s))
		})
	}
}

// The API server applies the allocation after the roll-back.
func TestAllocate_AfterTheRollBackFails(t *testing.T) {
	s, pods := world(t, 1, 2)
	one, two := newAllocating(t, s), newAllocating(t, s)
	bc := bind(pods[0], "node-a", "here-1")
	var late *resourcev1.ResourceClaim
	one.conn.Before = func(w fakeapi.Call) error {
		if w.Verb == "patch status" {
			late = s.claim("c0")
			return apierrors.NewTimeoutError("slow", 1)
		}
		return nil
	}
	require.Error(t, one.PreBind(t.Context(), bc))
	one.conn.Before = nil
	require.NotNil(t, late)
	require.NoError(t, one.PreBindRollBack(t.Context(), bc))
	require.NoError(t, two.PreBind(t.Context(), bind(pods[1], "node-a", "there-1")), "the device is free")
	_, err := one.allocator.tryWrite(t.Context(), bc, late, s.claim("c1").Status.Allocation)
	require.True(t, apierrors.IsConflict(err), "%v", err)
	assert.Equal(t, map[string]int{"node-a/gpu-0": 1}, given(t, s))
}

// A claim has devices of two pools, so that an allocation writes two records.
func TestAllocate_TwoPools(t *testing.T) {
	setup := func(t *testing.T) (*apiServer, *corev1.Pod, *replica, *replica) {
		t.Helper()
		s, pods := world(t, 1, 1, twoDevices)
		fabric, ok := pool("fabric", "link-0").(*resourcev1.ResourceSlice)
		require.True(t, ok)
		fabric.Spec.NodeName, fabric.Spec.AllNodes = nil, new(true)
		s.Put(fabric)
		return s, pods[0], newAllocating(t, s), newAllocating(t, s)
	}
	t.Run("Both", func(t *testing.T) {
		s, pod, r, _ := setup(t)
		bc := bind(pod, "node-a", "here-1")
		require.NoError(t, r.PreBind(t.Context(), bc))
		assert.Equal(t, map[string]string{"node-a/gpu-0": "c0", "fabric/link-0": "c0"}, records(t, s))
		require.NoError(t, r.PreBindRollBack(t.Context(), bc))
		assert.Empty(t, records(t, s))
		assert.Empty(t, given(t, s))
	})
	for n := 1; n <= 2; n++ {
		t.Run(fmt.Sprintf("Fails%d", n), func(t *testing.T) {
			s, pod, r, _ := setup(t)
			r.conn.Before = nthWrite("create", n, errDown)
			bc := bind(pod, "node-a", "here-1")
			require.ErrorContains(t, r.PreBind(t.Context(), bc), "down")
			require.NoError(t, r.PreBindRollBack(t.Context(), bc))
			require.NoError(t, r.Tidy(t.Context()))
			assert.Empty(t, records(t, s), "no record keeps an entry")
		})
	}
	t.Run("OneIsTaken", func(t *testing.T) {
		s, pod, r, two := setup(t)
		other := thePod("db", uses("d"))
		s.Put(other)
		s.Put(theClaim("d"))
		between(r, "create", 2, func() { require.NoError(t, two.PreBind(t.Context(), bind(other, "node-a", "there-1"))) })
		bc := bind(pod, "node-a", "here-1")
		err := r.PreBind(t.Context(), bc)
		require.True(t, framework.IsKind(err, framework.KindRefuse), "one device was taken while the records were written: %v", err)
		require.NoError(t, r.PreBindRollBack(t.Context(), bc))
		require.NoError(t, r.Tidy(t.Context()))
		assert.Len(t, given(t, s), 1)
		assert.Len(t, records(t, s), 1)
	})
}

func twoDevices(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests[0].Exactly.Count = 2 }

func TestRollBack_Deallocates(t *testing.T) {
	cases := map[string]struct {
		reason string
		then   func(t *testing.T, s *apiServer, two *replica)
		gone   bool
		users  []string
	}{
		"Alone": {reason: "no other pod has reserved the claim", gone: true, users: []string{}},
		"ReservedAgain": {
			reason: "the reservation was removed and added again", gone: true, users: []string{},
			then: func(t *testing.T, s *apiServer, one *replica) {
				t.Helper()
				s.change("c0", "kube-scheduler", unreserve)
				pod := &corev1.Pod{}
				require.NoError(t, s.get(claimKey("web-0"), pod))
				require.NoError(t, one.PreBind(t.Context(), bind(pod, "node-a", "here-1")))
			},
		},
		"OtherPod": {
			reason: "another pod has reserved the claim", users: []string{"db"},
			then: func(t *testing.T, s *apiServer, two *replica) {
				t.Helper()
				other := thePod("db", uses("c0"))
				s.Put(other)
				require.NoError(t, two.PreBind(t.Context(), bind(other, "node-a", "there-1")))
			},
		},
		"OtherAttempt": {
			reason: "another attempt at the bind relies on the reservation", users: []string{"web-0"},
			then: func(t *testing.T, s *apiServer, two *replica) {
				t.Helper()
				pod := &corev1.Pod{}
				require.NoError(t, s.get(claimKey("web-0"), pod))
				require.NoError(t, two.PreBind(t.Context(), bind(pod, "node-a", "there-1")))
			},
		},
		"Bound": {
			reason: "the pod is bound", users: []string{"web-0"},
			then: func(t *testing.T, s *apiServer, _ *replica) {
				t.Helper()
				pod := &corev1.Pod{}
				require.NoError(t, s.get(claimKey("web-0"), pod))
				s.Put(bound(pod, "node-b"))
			},
		},
		"NotOurs": {
			reason: "a scheduler allocated the claim again", users: []string{},
			then: func(t *testing.T, s *apiServer, _ *replica) {
				t.Helper()
				s.change("c0", "kube-scheduler", func(c *resourcev1.ResourceClaim) {
					c.Status = resourcev1.ResourceClaimStatus{}
					allocated("node-a", "gpu-1")(c)
				})
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, pods := world(t, 2, 1)
			one, two := newAllocating(t, s), newAllocating(t, s)
			bc := bind(pods[0], "node-a", "here-1")
			require.NoError(t, one.PreBind(t.Context(), bc))
			if tc.then != nil {
				tc.then(t, s, two)
			}
			require.NoError(t, one.PreBindRollBack(t.Context(), bc))
			assert.Equal(t, tc.gone, s.claim("c0").Status.Allocation == nil, tc.reason)
			assert.Equal(t, tc.users, users(s.claim("c0")), tc.reason)
			for _, m := range unsettled(s.claim("c0")) {
				assert.NotEqual(t, "here-1", m.Attempt, "the roll-back removes the mark")
			}
		})
	}
}

// Two binds allocate one claim.
func TestAllocate_ContestedClaim(t *testing.T) {
	s, pods := world(t, 2, 1)
	one, two := newAllocating(t, s), newAllocating(t, s)
	other := thePod("db", uses("c0"))
	s.Put(other)
	two.cache.freeze()
	// Both attempts mark the claim before the first one chooses.
	s.change("c0", "", marked("db", "there-1"))
	between(one, "patch status", 1, func() {
		err := two.PreBind(t.Context(), bind(other, "node-a", "there-1"))
		require.True(t, framework.IsKind(err, framework.KindWait), "the claim must not be allocated twice: %v", err)
	})
	require.NoError(t, one.PreBind(t.Context(), bind(pods[0], "node-a", "here-1")))
	claim := s.claim("c0")
	claim.Status = resourcev1.ResourceClaimStatus{}
	fresh, err := two.allocator.allocate(t.Context(), bind(other, "node-a", "there-1"), claim)
	require.NoError(t, err)
	assert.NotNil(t, fresh.Status.Allocation, "allocate returns the claim as the other bind allocated it")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	two.allocator.turn <- struct{}{}
	_, err = two.allocator.allocate(ctx, bind(other, "node-a", "there-1"), claim)
	require.ErrorIs(t, err, context.Canceled, "the context ends the wait for the turn")
}
