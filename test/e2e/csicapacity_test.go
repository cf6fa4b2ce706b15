// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
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
