// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/test/gen"
)

const (
	gcePlugin = "kubernetes.io/gce-pd"
	gceZone   = "topology.gke.io/zone"
)

// onGCE makes a volume one of an in-tree plugin. Its labels contain the zone, as in old clusters.
func onGCE(zone string) []gen.VolumeOption {
	source := corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "disk"}}
	return []gen.VolumeOption{gen.Label(corev1.LabelFailureDomainBetaZone, zone), gen.VolumeSource(source)}
}

// among returns the volume that FindMatchingVolume finds for the claim among all volumes. The
// index must find the same volume.
func (s snapshot) among(t *testing.T, all map[string]*corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, taken map[string]*corev1.PersistentVolume) string {
	t.Helper()
	var here []*corev1.PersistentVolume
	for _, pv := range all {
		if onNode, err := s.onNode(pv); err == nil && pv.Spec.ClaimRef == nil {
			here = append(here, onNode)
		}
	}
	slices.SortFunc(here, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	found, err := volume.FindMatchingVolume(claim, here, s.node, taken, true, true)
	require.NoError(t, err)
	if found == nil {
		return ""
	}
	return found.Name
}

// The test changes random worlds. In each state, the index finds the volume that
// FindMatchingVolume finds among all volumes.
func TestSmallest_FindsTheSameVolumeAsUpstream(t *testing.T) {
	found := 0
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // The seed makes the test repeatable.
		free, all, before := NewFreeVolumes(), map[string]*corev1.PersistentVolume{}, map[string]*corev1.PersistentVolume{}
		for range 120 {
			pv := randomVolume(random)
			before[pv.Name] = pv.DeepCopy()
			switch old := all[pv.Name]; {
			case old == nil:
				all[pv.Name] = pv
				free.OnAdd(pv, random.IntN(2) == 0)
			case random.IntN(4) == 0:
				delete(all, pv.Name)
				free.OnDelete(old)
			default:
				all[pv.Name] = pv
				free.OnUpdate(old, pv)
			}
		}
		for range 20 {
			zone := fmt.Sprintf("z%d", random.IntN(2))
			node := gen.Node(fmt.Sprintf("node-%d", random.IntN(3)), gen.Zone(zone), gen.Label(gceZone, zone))
			if random.IntN(5) == 0 {
				delete(node.Labels, corev1.LabelHostname)
			}
			s := snapshot{node: node, csiNode: pick(random, nil, gen.CSINode(node.Name, gcePlugin))}
			claim := randomClaim(random)
			u := use{claim: claim, free: free.of(volume.GetPersistentVolumeClaimClass(claim), node.Labels[corev1.LabelHostname])}
			taken := map[string]*corev1.PersistentVolume{}
			for range 4 {
				want := s.among(t, all, claim, taken)
				got, err := s.smallest(u, taken)
				require.NoError(t, err)
				if want == "" {
					require.Nil(t, got, "seed %d", seed)
					break
				}
				require.NotNil(t, got, "seed %d: %s", seed, want)
				require.Equal(t, want, got.Name, "seed %d", seed)
				require.Same(t, all[want], got, "the index returns the volume, not its translation")
				taken[want] = got
				found++
			}
		}
		for _, pv := range all {
			assert.Equal(t, before[pv.Name], pv, "the volume does not change, because a cache can share it")
			free.OnDelete(pv)
		}
		assert.Empty(t, free.byName)
		assert.Empty(t, free.shelves, "the index keeps nothing of deleted volumes")
	}
	assert.Greater(t, found, 500, "enough worlds have volumes that fit")
}

func pick[T any](random *rand.Rand, some ...T) T { return some[random.IntN(len(some))] }

func randomVolume(random *rand.Rand) *corev1.PersistentVolume {
	nothing := gen.Label("nothing", "special")
	options := []gen.VolumeOption{
		gen.VolumeOfClass(pick(random, "local", "local", "other")),
		gen.Capacity(pick(random, "1Gi", "1024Mi", "2Gi", "3Gi", "3Gi", "10Gi")),
		pick[gen.VolumeOption](random, nothing, nothing, gen.OnNode("node-0"), gen.OnNode("node-1"), gen.OnNodesWith(corev1.LabelTopologyZone, "z1"),
			gen.OnNodesWith(corev1.LabelHostname, "node-0", "node-1")),
		pick[gen.VolumeOption](random, nothing, nothing, gen.VolumeAccessModes(corev1.ReadWriteOnce, corev1.ReadOnlyMany), gen.VolumeAccessModes(corev1.ReadWriteMany)),
		pick[gen.VolumeOption](random, nothing, nothing, nothing, gen.VolumeBlockMode()),
		pick[gen.VolumeOption](random, nothing, gen.Label("disk", "ssd"), gen.Label("disk", "hdd")),
		pick[gen.VolumeOption](random, nothing, nothing, nothing, gen.VolumeAttributesClass("fast")),
		pick[gen.VolumeOption](random, nothing, nothing, nothing, nothing, gen.VolumePhase(corev1.VolumeReleased), gen.VolumePhase(corev1.VolumePending), gen.Terminating(), gen.ClaimRef(claimNamed("logs"))),
	}
	if random.IntN(3) == 0 {
		options = append(options, onGCE(pick(random, "z0", "z1", "a__b__"))...)
	}
	return volumeNamed(fmt.Sprintf("pv-%d", random.IntN(60)), options...)
}

func randomClaim(random *rand.Rand) *corev1.PersistentVolumeClaim {
	nothing := gen.Label("nothing", "special")
	return theClaim(
		gen.Requests(pick(random, "1Mi", "1Gi", "2Gi", "2500Mi", "20Gi")),
		pick[gen.ClaimOption](random, nothing, nothing, gen.AccessModes(corev1.ReadOnlyMany), gen.AccessModes(corev1.ReadWriteOncePod)),
		pick[gen.ClaimOption](random, nothing, nothing, nothing, gen.BlockMode()),
		pick[gen.ClaimOption](random, nothing, nothing, gen.Selects("disk", "ssd")),
		pick[gen.ClaimOption](random, nothing, nothing, nothing, gen.AttributesClass("fast")),
	)
}

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
