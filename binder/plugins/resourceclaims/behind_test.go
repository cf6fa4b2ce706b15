// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// A scheduler reserves the claim and immediately binds. The bind must not wait for the
// cache.
func TestBind_WithAnOutdatedCache(t *testing.T) {
	reserve := reservedTo("web")
	release := func(claim *resourcev1.ResourceClaim) { claim.Status.ReservedFor = nil }

	t.Run("PreFlight", func(t *testing.T) {
		pod := thePod("web", uses("c"))
		s := newAPI(gen.Node("node-a"), pod, theClaim("c", allocated("node-a", "gpu-0")))
		r := newReplica(t, s)
		r.cache.freeze()
		s.change("c", "kube-scheduler", reserve)
		next, err := r.preFlight(t.Context(), bind(pod, "node-a", "here-1"))
		require.NoError(t, err)
		assert.Equal(t, framework.Skip, next, "the bind needs no attempt")
	})

	// The first bind failed, and the scheduler has since released and reserved the claim.
	t.Run("Confirm", func(t *testing.T) {
		pod := thePod("web", uses("c"))
		s := newAPI(gen.Node("node-a"), pod, theClaim("c", allocated("node-a", "gpu-0")))
		r := newReplica(t, s)
		bc := bind(pod, "node-a", "here-1")
		require.NoError(t, r.PreBind(t.Context(), bc))
		s.change("c", "kube-scheduler", release)
		r.cache.freeze()
		s.change("c", "kube-scheduler", reserve)
		assert.NoError(t, r.confirm(t.Context(), bc), "the client need not retry")
	})
}
