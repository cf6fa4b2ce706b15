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
		// kube-controller-manager deallocates the claim of a finished pod.
		s.change("c0", "kube-controller-manager", func(c *resourcev1.ResourceClaim) { c.Status = resourcev1.ResourceClaimStatus{} })
		require.NoError(t, r.Tidy(t.Context()))
		assert.Empty(t, records(t, s))
		var left corev1.ConfigMapList
		require.NoError(t, s.Cache().List(t.Context(), &left))
		assert.Empty(t, left.Items, "Tidy deletes the empty record")
	})
	t.Run("ClaimGone", func(t *testing.T) {
		s, _, r, _ := allocatedBy(t)
		s.Remove(theClaim("c0"))
		require.NoError(t, r.Tidy(t.Context()))
		assert.Empty(t, records(t, s))
	})
	t.Run("ClaimRecreated", func(t *testing.T) {
		s, _, r, _ := allocatedBy(t)
		s.Put(theClaim("c0", allocated("node-a", "gpu-0"), reservedTo("db"), func(c *resourcev1.ResourceClaim) { c.UID = "another" }))
		require.NoError(t, r.Tidy(t.Context()))
		assert.Empty(t, records(t, s), "the entry belongs to another UID")
		assert.NotNil(t, s.claim("c0").Status.Allocation)
	})
	t.Run("LeftBehind", func(t *testing.T) {
		s, pod, r, a := allocatedBy(t)
		// Another attempt relies on the allocation when the first one fails, and then fails
		// too.
		b := bind(pod, "node-a", "there-1")
		require.NoError(t, r.PreBind(t.Context(), b))
		require.NoError(t, r.PreBindRollBack(t.Context(), a))
		require.NoError(t, r.Tidy(t.Context()))
		assert.NotNil(t, s.claim("c0").Status.Allocation, "an attempt is in progress")
		require.NoError(t, r.PreBindRollBack(t.Context(), b))
		assert.NotNil(t, s.claim("c0").Status.Allocation, "the second attempt has not allocated the claim")
		require.NoError(t, r.Tidy(t.Context()))
		assert.Nil(t, s.claim("c0").Status.Allocation, "the claim has no reservation")
		assert.Empty(t, records(t, s))
	})
	t.Run("ReservedMeanwhile", func(t *testing.T) {
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
		assert.Equal(t, []string{"gpu-1"}, devices(s.claim("c0")), "Tidy keeps the allocation of a scheduler")
		assert.Empty(t, records(t, s))
	})
	t.Run("Off", func(t *testing.T) { require.NoError(t, newReplica(t, newAPI()).Tidy(t.Context())) })
	t.Run("Down", func(t *testing.T) {
		s, _, r, _ := allocatedBy(t)
		s.change("c0", "kube-controller-manager", unreserve)
		r.conn.Before = nthWrite("get", 1, errDown)
		require.Error(t, r.Tidy(t.Context()), "Tidy fails if it cannot read a claim")
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
		require.ErrorContains(t, r.PreBind(t.Context(), bc), "the keys driver and pool are required", "a record that cannot be decoded stops allocation")
		require.NoError(t, r.PreBindRollBack(t.Context(), bc), "the roll-back does not need the record")
		require.ErrorContains(t, r.Tidy(t.Context()), "the keys driver and pool are required", "Tidy reports the record")
	})
}

// A device that seems to be in use can be free.
func TestAllocate_ChecksSuspects(t *testing.T) {
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
		require.True(t, framework.IsKind(err, framework.KindRefuse), "the device is in use: %v", err)
		s.Put(theClaim("c0"))
		require.NoError(t, r.PreBind(t.Context(), bind(pods[1], "node-a", "here-2")), "the cache alone does not reject a bind")
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
		require.NoError(t, r.PreBind(t.Context(), bind(pods[0], "node-a", "here-1")), "the class was just created")
	})
}

type noClasses struct{ client.Reader }

func (c noClasses) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if _, is := into.(*resourcev1.DeviceClass); is {
		return fakeapi.NotFound("DeviceClass", key.Name)
	}
	return c.Reader.Get(ctx, key, into, opts...)
}

// Another replica writes the record at the same time.
func TestAllocate_RecordChanges(t *testing.T) {
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

// Another client writes the record at the same time.
func TestAllocate_ReplacesAStaleEntryAfterAConflict(t *testing.T) {
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
