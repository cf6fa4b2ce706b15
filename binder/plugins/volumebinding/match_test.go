// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

// places are options for free volumes: local volumes of 1,000 nodes, volumes of three zones, and
// volumes that every node can use.
var places = map[string]func(i int) gen.VolumeOption{
	"local": func(i int) gen.VolumeOption { return gen.OnNode(fmt.Sprintf("node-%d", i%1000)) },
	"zonal": func(i int) gen.VolumeOption {
		return gen.OnNodesWith(corev1.LabelTopologyZone, fmt.Sprintf("z%d", i%3))
	},
	"anywhere": func(int) gen.VolumeOption { return gen.VolumeAccessModes(corev1.ReadWriteOnce) },
}

// matcher returns the decision on a claim. The class has this many free volumes.
func matcher(tb testing.TB, place string, volumes int) func() {
	tb.Helper()
	free := NewFreeVolumes()
	for i := range volumes {
		free.OnAdd(volumeNamed(fmt.Sprintf("pv-%d", i), gen.Capacity(fmt.Sprintf("%dGi", 1+(i/1000)%10)), places[place](i)), true)
	}
	node := gen.Node("node-7", gen.Zone("z1"))
	return func() {
		s := snapshot{pod: thePod(), node: node, uses: []use{{claim: theClaim(), class: local, free: free.of("local", "node-7")}}}
		pl, err := findPodVolumes(tb.Context(), s)
		require.NoError(tb, err)
		require.Len(tb, pl.static, 1)
	}
}

// The allocations of a match do not depend on the number of free volumes.
func TestMatch_DoesNotGrowWithFreeVolumes(t *testing.T) {
	for place := range places {
		few, many := testing.AllocsPerRun(10, matcher(t, place, 1_000)), testing.AllocsPerRun(10, matcher(t, place, 10_000))
		assert.LessOrEqual(t, many, 1.5*few, "%s: allocations with 10,000 volumes and with 1,000", place)
	}
}

// The plugin examines a volume that does not match only as far as necessary: allocations do not depend on the number of such volumes.
func TestMatch_ChecksCheapConditionsFirst(t *testing.T) {
	selects := theClaim()
	selector := metav1.LabelSelectorRequirement{Key: "rack", Operator: metav1.LabelSelectorOpNotIn}
	for i := range 2_000 {
		selector.Values = append(selector.Values, fmt.Sprint(i))
	}
	selects.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{selector}}
	for reason, claim := range map[string]*corev1.PersistentVolumeClaim{
		"the selector is parsed once":              selects,
		"the affinity of the volume is not parsed": theClaim(gen.AccessModes(corev1.ReadWriteMany)),
	} {
		allocations := func(volumes int) float64 {
			free := NewFreeVolumes()
			for i := range volumes {
				here := gen.OnNodesWith(corev1.LabelTopologyZone, "z1")
				free.OnAdd(volumeNamed(fmt.Sprintf("pv-%d", i), gen.VolumePhase(corev1.VolumeAvailable), gen.Capacity("9Gi"), gen.Label("rack", "7"), here), true)
			}
			s, u := snapshot{node: theNode()}, use{claim: claim, free: free.of("local", "node-a")}
			return testing.AllocsPerRun(5, func() {
				pv, err := s.smallest(u, taken{})
				require.NoError(t, err)
				require.Nil(t, pv)
			})
		}
		assert.LessOrEqual(t, allocations(100), 1.5*allocations(1), reason)
	}
}

// A pass with many claims ends with the call.
func TestMatch_EndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := findPodVolumes(ctx, snapshot{pod: thePod(), node: theNode(), uses: []use{{claim: theClaim(), class: local}}})
	assert.True(t, frameworktest.IsKind(err, framework.KindWait), "%v", err)
}
