// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/test/gen"
)

// Prebind checks the capacity that the provisioner publishes, which changes with each volume.
func TestCSICapacity(t *testing.T) {
	t.Parallel()
	b := newCSIBench(t)
	class := b.lateClass("1Gi", "8Gi", zonesHave("1Gi"))
	b.sized("first", class, "5Gi")
	b.sized("second", class, "4Gi")
	for _, name := range []string{"first", "second"} {
		b.newPod(name, byHand, name)
	}
	less := func(size, node string) string {
		return "CSI driver " + csiName + " reports less than " + size + " of storage in StorageClass " + class + " for node " + node
	}
	b.assertForbidden(b.bindPod("first", csiA), "first", less("5Gi", csiA))
	b.assertForbidden(b.bindPod("first", csiNone), "first", "reports no storage of StorageClass "+class+" for node "+csiNone)
	b.assertUnbound("first", "a rejected bind should not request a volume")
	require.NoError(t, b.bindPod("first", csiB))
	b.assertStored("first", csiB, csiZoneB)

	b.untilPublished(class, "1Gi", "3Gi")
	b.assertForbidden(b.bindPod("second", csiB), "second", less("4Gi", csiB))
	b.remove("first", "first")
	b.untilPublished(class, "1Gi", "8Gi")
	require.NoError(t, b.bindPod("second", csiB))
	b.assertStored("second", csiB, csiZoneB)
	b.remove("second", "second")
	b.untilNoneStored()
}

// A driver can limit the size of a volume to less than its capacity.
func TestCSIMaximumVolumeSize(t *testing.T) {
	t.Parallel()
	b := newCSIBench(t)
	class := b.lateClass("8Gi", "8Gi", zonesHave("8Gi"), gen.Parameter("maximumVolumeSize", "2Gi"))
	b.sized("large", class, "3Gi")
	b.sized("small", class, "2Gi")
	for _, name := range []string{"large", "small"} {
		b.newPod(name, byHand, name)
	}
	b.assertForbidden(b.bindPod("large", csiA), "large", "reports less than 3Gi of storage")
	require.NoError(t, b.bindPod("small", csiA))
	b.assertStored("small", csiA, csiZoneA)
}

// Two binds pass the check of the capacity at the same time, but the driver has storage for one volume only. The provisioner then requests
// another node for the other claim. If the driver has published its new capacity before, that is the reason that Prebind gives.
func TestCSICapacityRace(t *testing.T) {
	t.Parallel()
	b := newCSIBench(t)
	class := b.lateClass("5Gi", "8Gi", zonesHave("5Gi"), gen.Parameter("delay", provisioningDuration))
	results := make(chan [2]error)
	for _, name := range []string{"one", "two"} {
		b.sized(name, class, "5Gi")
		b.newPod(name, byHand, name)
	}
	go func() {
		first := make(chan error)
		go func() { first <- b.bindPod("one", csiB) }()
		second := b.bindPod("two", csiB)
		results <- [2]error{<-first, second}
	}()
	got := <-results
	bound, loser := "one", "two"
	if got[0] != nil {
		bound, loser, got[1] = "two", "one", got[0]
	}
	b.assertForbidden(got[1], loser)
	assert.Regexp(t, "the provisioner failed on node "+csiB+" and requests another node|reports less than 5Gi", got[1].Error())
	b.assertClaimBound(bound, csiB)
	b.untilAnyEvent("ProvisioningFailed", "ResourceExhausted")

	b.untilPublished(class, "5Gi", "3Gi")
	err := b.bindPod(loser, csiB)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	assert.ErrorContains(t, err, "reports less than 5Gi")
	require.NoError(t, b.bindPod(loser, csiA))
	b.assertClaimBound(loser, csiA)
	assert.Len(t, b.stored(t), 2)
}
