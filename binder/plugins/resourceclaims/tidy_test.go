// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
)

func TestTidy(t *testing.T) {
	allocatedBy := func(t *testing.T) (*apiServer, *corev1.Pod, *replica, *framework.BindContext) {
		t.Helper()
		s, pods := world(t, 2, 1)
		r := newAllocating(t, s)
		bc := bind(pods[0], "node-a", "here-1")
		require.NoError(t, r.PreBind(t.Context(), bc))
		return s, pods[0], r, bc
	}
	t.Run("InUse", func(t *testing.T) {
		s, _, r, bc := allocatedBy(t)
		require.NoError(t, r.Tidy(t.Context()))
		r.PostBind(t.Context(), bc)
		s.Forget()
		require.NoError(t, r.Tidy(t.Context()))
		assert.Empty(t, s.written())
		assert.Len(t, records(t, s), 1)
	})
	t.Run("PodEnded", func(t *testing.T) {
		s, _, r, bc := allocatedBy(t)
		r.PostBind(t.Context(), bc)
		// As kube-controller-manager does.
		s.change("c0", "kube-controller-manager", func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} })
		require.NoError(t, r.Tidy(t.Context()))
		assert.Empty(t, records(t, s))
		var left corev1.ConfigMapList
		require.NoError(t, s.Cache().List(t.Context(), &left))
		assert.Empty(t, left.Items, "no empty record stays")
	})
	t.Run("ClaimGone", func(t *testing.T) {
		s, _, r, _ := allocatedBy(t)
		s.Remove(theClaim("c0"))
		require.NoError(t, r.Tidy(t.Context()))
		assert.Empty(t, records(t, s))
	})
	t.Run("ClaimAnew", func(t *testing.T) {
		s, _, r, _ := allocatedBy(t)
		s.Put(theClaim("c0", allocated("node-a", "gpu-0"), reservedTo("db"), func(c *resourcev1.ResourceClaim) { c.UID = "another" }))
		require.NoError(t, r.Tidy(t.Context()))
		assert.Empty(t, records(t, s), "one of the same name is another")
		assert.NotNil(t, s.claim("c0").Status.Allocation)
	})
	t.Run("LeftBehind", func(t *testing.T) {
		s, pod, r, a := allocatedBy(t)
		// Another attempt relies on it when the first fails, and fails then.
		b := bind(pod, "node-a", "there-1")
		require.NoError(t, r.PreBind(t.Context(), b))
		require.NoError(t, r.PreBindRollBack(t.Context(), a))
		require.NoError(t, r.Tidy(t.Context()))
		assert.NotNil(t, s.claim("c0").Status.Allocation, "an attempt works on it")
		require.NoError(t, r.PreBindRollBack(t.Context(), b))
		assert.NotNil(t, s.claim("c0").Status.Allocation, "it is not what the second has allocated")
		require.NoError(t, r.Tidy(t.Context()))
		assert.Nil(t, s.claim("c0").Status.Allocation, "nobody uses it")
		assert.Empty(t, records(t, s))
	})
	t.Run("SomebodyComes", func(t *testing.T) {
		s, pod, r, bc := allocatedBy(t)
		s.change("c0", "", func(c *resourcev1.ResourceClaim) { c.Annotations, c.Status.ReservedFor = nil, nil })
		other := newAllocating(t, s)
		between(r, "patch status", 1, func() { require.NoError(t, other.PreBind(t.Context(), bind(pod, "node-a", "there-1"))) })
		require.NoError(t, r.Tidy(t.Context()))
		assert.Equal(t, []string{"web-0"}, users(s.claim("c0")))
		assert.Len(t, records(t, s), 1)
		_ = bc
	})
	t.Run("NotOurs", func(t *testing.T) {
		s, _, r, _ := allocatedBy(t)
		s.change("c0", "kube-scheduler", func(c *resourcev1.ResourceClaim) {
			c.Annotations, c.Status = nil, resourcev1.ResourceClaimStatus{}
			allocated("node-a", "gpu-1")(c)
		})
		require.NoError(t, r.Tidy(t.Context()))
		assert.Equal(t, []string{"gpu-1"}, devices(s.claim("c0")), "what Prebind has not allocated stays")
		assert.Empty(t, records(t, s))
	})
	t.Run("Off", func(t *testing.T) { require.NoError(t, newReplica(t, newAPI()).Tidy(t.Context())) })
	t.Run("Down", func(t *testing.T) {
		s, _, r, _ := allocatedBy(t)
		s.change("c0", "kube-controller-manager", unreserve)
		r.conn.Before = nthWrite("get", 1, errDown)
		require.Error(t, r.Tidy(t.Context()), "it does not guess")
		r.conn.Before = nthWrite("list", 1, errDown)
		require.Error(t, r.Tidy(t.Context()))
	})
	t.Run("BrokenRecord", func(t *testing.T) {
		s, pods := world(t, 1, 1)
		broken := recordOf(t, newPoolRecord(poolID{driver, "node-a"}))
		broken.Data = nil
		s.Put(broken)
		r := newAllocating(t, s)
		bc := bind(pods[0], "node-a", "here-1")
		require.ErrorContains(t, r.PreBind(t.Context(), bc), "the keys driver and pool are required", "nothing is allocated while a record cannot be read")
		require.NoError(t, r.PreBindRollBack(t.Context(), bc), "but what was reserved is given back")
		require.ErrorContains(t, r.Tidy(t.Context()), "the keys driver and pool are required", "and somebody is told")
	})
}

// TestPruneWhenNothingFits: what is in the way may be gone.
func TestPruneWhenNothingFits(t *testing.T) {
	t.Run("Record", func(t *testing.T) {
		s, pods := world(t, 1, 2)
		r := newAllocating(t, s)
		require.NoError(t, r.PreBind(t.Context(), bind(pods[0], "node-a", "here-1")))
		s.change("c0", "kube-controller-manager", func(c *resourcev1.ResourceClaim) {
			c.Annotations, c.Status = nil, resourcev1.ResourceClaimStatus{}
		})
		require.NoError(t, r.PreBind(t.Context(), bind(pods[1], "node-a", "here-2")))
		assert.Equal(t, map[string]string{"node-a/gpu-0": "c1"}, records(t, s))
	})
	t.Run("Cache", func(t *testing.T) {
		s, pods := world(t, 1, 2)
		r := newAllocating(t, s)
		s.Put(theClaim("c0", allocated("node-a", "gpu-0"), reservedTo("web-0")))
		r.cache.freeze()
		err := r.PreBind(t.Context(), bind(pods[1], "node-a", "here-2"))
		require.True(t, framework.IsKind(err, framework.KindRefuse), "it is in use: %v", err)
		s.Put(theClaim("c0"))
		require.NoError(t, r.PreBind(t.Context(), bind(pods[1], "node-a", "here-2")), "nothing is refused by the cache alone")
	})
	t.Run("CacheOfAClaimThatIsGone", func(t *testing.T) {
		s, pods := world(t, 1, 2)
		r := newAllocating(t, s)
		s.Put(theClaim("c0", allocated("node-a", "gpu-0"), reservedTo("web-0")))
		r.cache.freeze()
		s.Remove(theClaim("c0"))
		require.NoError(t, r.PreBind(t.Context(), bind(pods[1], "node-a", "here-2")))
	})
	t.Run("Class", func(t *testing.T) {
		s, pods := world(t, 1, 1)
		r := newAllocating(t, s)
		r.allocator.h.Cached = noClasses{Reader: r.cache}
		require.NoError(t, r.PreBind(t.Context(), bind(pods[0], "node-a", "here-1")), "the class was made a moment ago")
	})
}

type noClasses struct{ client.Reader }

func (c noClasses) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if _, is := into.(*resourcev1.DeviceClass); is {
		return fakeapi.NotFound("DeviceClass", key.Name)
	}
	return c.Reader.Get(ctx, key, into, opts...)
}

// TestRecordsChange is another replica that writes a record at the same time.
func TestRecordsChange(t *testing.T) {
	t.Run("First", func(t *testing.T) {
		s, pods := world(t, 2, 2)
		one, two := newAllocating(t, s), newAllocating(t, s)
		between(one, "create", 1, func() { require.NoError(t, two.PreBind(t.Context(), bind(pods[1], "node-a", "there-1"))) })
		require.NoError(t, one.PreBind(t.Context(), bind(pods[0], "node-a", "here-1")))
		assert.Equal(t, map[string]string{"node-a/gpu-0": "c1", "node-a/gpu-1": "c0"}, records(t, s))
	})
	t.Run("GivingBack", func(t *testing.T) {
		s, pods := world(t, 2, 2)
		one, two := newAllocating(t, s), newAllocating(t, s)
		bc := bind(pods[0], "node-a", "here-1")
		require.NoError(t, one.PreBind(t.Context(), bc))
		between(one, "update", 1, func() { require.NoError(t, two.PreBind(t.Context(), bind(pods[1], "node-a", "there-1"))) })
		require.NoError(t, one.PreBindRollBack(t.Context(), bc))
		assert.Equal(t, map[string]string{"node-a/gpu-1": "c1"}, records(t, s))
		assert.Equal(t, []string{"deallocated ResourceClaim default/c0"}, bc.Undone())
	})
}

// TestPruneMeetsAnother: what this replica wanted to drop is still in the record when
// another one has written it in between, and is dropped then.
func TestPruneMeetsAnother(t *testing.T) {
	s, pods := world(t, 2, 3)
	r := newAllocating(t, s)
	for i, attempt := range []string{"here-1", "here-2"} {
		require.NoError(t, r.PreBind(t.Context(), bind(pods[i], "node-a", attempt)))
	}
	s.change("c0", "kube-controller-manager", func(c *resourcev1.ResourceClaim) {
		c.Annotations, c.Status = nil, resourcev1.ResourceClaimStatus{}
	})
	between(r, "update", 1, func() {
		var list corev1.ConfigMapList
		require.NoError(t, s.Cache().List(t.Context(), &list))
		require.Len(t, list.Items, 1)
		list.Items[0].Annotations = map[string]string{"example.com/touched": "yes"}
		s.Put(&list.Items[0])
	})
	require.NoError(t, r.PreBind(t.Context(), bind(pods[2], "node-a", "here-3")))
	assert.Equal(t, map[string]string{"node-a/gpu-0": "c2", "node-a/gpu-1": "c1"}, records(t, s))
}
