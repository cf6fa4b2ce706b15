// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/prebind/prebind/test/gen"
)

// The bind is refused after Prebind has reserved one of the pod's two claims. Prebind removes that reservation and keeps writes of other
// clients.
func TestResourceClaimsRollBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	pod := b.podWith(byHand, gen.UsesResourceClaim("reserved"), gen.UsesResourceClaim("free"))
	requests := gen.RequestsDevices("some.example.com", 1)
	b.resourceClaim("reserved", requests, gen.AllocatedFor("node-1", "some.example.com", gen.Device("gpu-0")), gen.ReservedForPod(pod.Name, pod.UID))
	free := b.resourceClaim("free", requests, gen.AllocatedFor("node-1", "some.example.com", gen.Device("gpu-1")))
	seen := b.watchResourceClaims()

	b.refusedAfterUs("node-1")
	assert.NotEmpty(t, marksOn(b.assertReserved("free", pod))[string(pod.UID)], "the bind may still succeed")
	claim := b.untilResourceClaim("free", "released", released)
	assert.Equal(t, free.Status.Allocation, claim.Status.Allocation, "the allocation should not belong to Prebind")
	b.untilEvent("PreBindRolledBack", "resource-claims: Node node-1: the pod was not bound")
	own := b.assertReserved("reserved", pod)
	for _, claim := range seen.upTo(b, own) {
		if claim.Name == "reserved" {
			assert.Empty(t, marksOn(claim), "the claim should have no marks")
			assert.False(t, writtenByPrebind(claim), "Prebind should not have written the claim")
		}
	}

	require.NoError(t, b.bindByHand(b.binding("node-1")))
	b.untilBound()
	b.untilUnmarked("free")
	b.assertReserved("free", pod)
	b.assertReserved("reserved", pod)
}
