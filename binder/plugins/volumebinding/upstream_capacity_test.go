// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

// capacityCase contains the capacities that a driver has published.
type capacityCase struct {
	upstream
	capacities []client.Object
}

func TestUpstreamCapacity(t *testing.T) {
	on := func(node string) gen.CapacityOption { return gen.ReachableWith(nodeKey, node) }
	of := gen.CSIStorageCapacity
	gib, none := gen.Amount("1Gi"), refused("reports no storage")
	tooLittle := refused("less than 1Gi")

	cases := map[string]capacityCase{
		"network-attached": {capacities: list(of("net", provisionerClass, gib))},
		"local-storage":    {capacities: list(of("net", provisionerClass, on("node1"), gib))},
		"multiple": {capacities: list(
			of("net", provisionerClass, gib), of("net2", provisionerClass, on("node2"), gib), of("net1", provisionerClass, on("node1"), gib),
		)},
		"no-storage":               {upstream: none},
		"wrong-node":               {upstream: none, capacities: list(of("net", provisionerClass, on("node2"), gib))},
		"wrong-storage-class":      {upstream: none, capacities: list(of("net", waitClass, on("node1"), gib))},
		"insufficient-storage":     {upstream: tooLittle, capacities: list(of("net", provisionerClass, on("node1"), gen.Amount("1Mi")))},
		"insufficient-volume-size": {upstream: tooLittle, capacities: list(of("net", provisionerClass, on("node1"), gib, gen.LargestVolume("1Mi")))},
		"zero-storage":             {upstream: tooLittle, capacities: list(of("net", provisionerClass, on("node1"), gen.Amount("0Mi")))},
		"zero-volume-size":         {upstream: tooLittle, capacities: list(of("net", provisionerClass, on("node1"), gen.LargestVolume("0Mi")))},
		"nil-storage":              {upstream: tooLittle, capacities: list(of("net", provisionerClass, on("node1")))},
	}
	for name, tc := range cases {
		found := findCase{claims: claimList{provisionedPVC}, dynamic: []string{"provisioned-pvc"}}
		t.Run("CSIDriver.StorageCapacity=false/"+name, func(t *testing.T) {
			found.run(t, gen.CSIDriver(testProvisioner, false), tc.capacities...)
		})
		found.upstream = tc.upstream
		t.Run("CSIDriver.StorageCapacity=true/"+name, func(t *testing.T) {
			found.run(t, gen.CSIDriver(testProvisioner, true), tc.capacities...)
		})
	}
}
