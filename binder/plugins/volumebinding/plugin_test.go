// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestPreFlight(t *testing.T) {
	bound := []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()))}
	driver := gen.CSIDriver("csi.example.com", true)
	ephemeralPod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp", gen.OfClass("local")))
	ephemeralClaim := claimNamed("web-tmp", gen.OwnedBy("Pod", "web", "pod-1"))
	cases := map[string]struct {
		reason       string
		pod          *corev1.Pod
		cached, live []client.Object
		next         framework.Next
		want         framework.Kind
		intents      []string
		// noReads and noLiveReads mean that the cache or the API server receives no reads.
		noReads, noLiveReads bool
	}{
		"NoClaims": {
			reason: "a pod without claims needs no reads", pod: gen.Pod("web", gen.EmptyDir("tmp")),
			next: framework.Skip, noReads: true, noLiveReads: true,
		},
		"Bound": {
			reason: "all claims are bound",
			cached: bound, next: framework.Skip, noLiveReads: true,
		},
		"BoundNotCached": {
			reason: "the cache is behind, and the engine repeats PreFlight on live objects",
			cached: []client.Object{theNode()}, live: append([]client.Object{theNode()}, bound...), next: framework.Skip,
		},
		"NodeNotCachedAsItIs": {
			reason: "the decision uses the live node that the engine puts into the context",
			cached: []client.Object{theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNodesWith("rack", "r1"))},
			live: []client.Object{
				theNode(gen.Label("rack", "r1")), theClaim(gen.BoundToVolume("pv")), volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNodesWith("rack", "r1")),
			},
			next: framework.Skip,
		},
		"Refused": {
			reason: "the live objects lead to the same rejection",
			cached: []client.Object{theNode()}, live: []client.Object{theNode()}, want: framework.KindRefuse,
		},
		"NodeGone": {
			reason: "a deleted node is checked in its last known state",
			cached: []client.Object{theClaim(gen.SelectedNode("node-b")), local},
			live:   []client.Object{theClaim(gen.SelectedNode("node-b")), local}, want: framework.KindRefuse,
		},
		"EphemeralNotCached": {
			reason: "the claim was just created", pod: ephemeralPod,
			cached: []client.Object{local}, live: []client.Object{theNode(), ephemeralClaim, local},
			intents: []string{"volumebinding would set selected-node of claim default/web-tmp to node-a and wait for provisioning"},
		},
		"CapacityNotCachedAsItIs": {
			reason: "a rejection needs a live read of the capacities",
			cached: []client.Object{theClaim(), local, driver, gen.CSIStorageCapacity("c", "local", gen.Amount("1Mi"))},
			live:   []client.Object{theNode(), theClaim(), local, driver, gen.CSIStorageCapacity("c", "local", gen.Amount("1Gi"))},
			intents: []string{
				"volumebinding would set selected-node of claim default/data to node-a and wait for provisioning",
			},
		},
		"CapacityGone": {
			reason: "the live capacities are not enough", want: framework.KindRefuse,
			cached: []client.Object{theClaim(), local, driver, gen.CSIStorageCapacity("c", "local", gen.Amount("1Mi"))},
			live:   []client.Object{theNode(), theClaim(), local, driver},
		},
		"ReservedNotCachedAsItIs": {
			reason: "the live volume does not name the claim",
			cached: []client.Object{theClaim(), local, volumeNamed("pv", gen.ClaimRef(theClaim()), gen.OnNode("node-b"))},
			live:   []client.Object{theNode(), theClaim(), local, volumeNamed("pv", gen.OnNode("node-b"))},
			intents: []string{
				"volumebinding would set selected-node of claim default/data to node-a and wait for provisioning",
			},
		},
		"ProvisionerIsNoDriver": {
			reason: "the name of the provisioner is not a valid driver name", want: framework.KindRefuse,
			cached: []client.Object{theClaim(gen.OfClass("static")), static},
			live:   []client.Object{theNode(), theClaim(gen.OfClass("static")), static},
		},
		"NoProvisioner": {
			reason: "a driver without a name cannot exist", want: framework.KindRefuse,
			cached: []client.Object{theClaim(gen.OfClass("none")), gen.StorageClass("none", "")},
			live:   []client.Object{theNode(), theClaim(gen.OfClass("none")), gen.StorageClass("none", "")},
		},
		"ImpossibleClass": {
			reason: "the API server does not validate the class of the beta annotation", want: framework.KindRefuse,
			cached: []client.Object{theClaim(gen.Annotation(corev1.BetaStorageClassAnnotation, "a/b"))},
			live:   []client.Object{theNode(), theClaim(gen.Annotation(corev1.BetaStorageClassAnnotation, "a/b"))},
		},
		"CapacityEnough": {
			reason: "a bind that is not rejected needs no live read", noLiveReads: true,
			cached:  []client.Object{theClaim(), local, driver, gen.CSIStorageCapacity("c", "local", gen.Amount("1Gi"))},
			intents: []string{"volumebinding would set selected-node of claim default/data to node-a and wait for provisioning"},
		},
		"Static": {
			reason: "the intent describes the write", cached: []client.Object{theClaim(), local, volumeNamed("pv")}, noLiveReads: true,
			intents: []string{"volumebinding would set the claimRef of PersistentVolume pv to claim default/data and wait until the claim is bound"},
		},
		"StaticWritten": {
			reason: "the intent describes a wait without a write", noLiveReads: true,
			cached:  []client.Object{theClaim(), local, volumeNamed("pv", gen.ClaimRef(theClaim()))},
			intents: []string{"volumebinding would wait until claim default/data is bound to PersistentVolume pv"},
		},
		"Dynamic": {
			reason: "the intent describes the write", cached: []client.Object{theClaim(), local}, noLiveReads: true,
			intents: []string{"volumebinding would set selected-node of claim default/data to node-a and wait for provisioning"},
		},
		"DynamicWritten": {
			reason: "the intent describes a wait without a write", noLiveReads: true,
			cached:  []client.Object{theClaim(gen.SelectedNode("node-a")), local},
			intents: []string{"volumebinding would wait for provisioning of claim default/data on node-a"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := tc.pod
			if pod == nil {
				pod = thePod()
			}
			cached, live := newWorld(tc.cached...), newWorld(tc.live...)
			bc := contextFor(pod)
			next, err := pluginBetween(cached, live).preFlight(t.Context(), bc)
			assert.Empty(t, live.patches, "PreFlight never writes")
			assert.Equal(t, tc.noReads, cached.count() == 0, "reads of the cache")
			assert.Equal(t, tc.noLiveReads, live.count() == 0, "reads of the API server")
			if tc.want != "" {
				assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.next, next, tc.reason)
			assert.Equal(t, tc.intents, bc.Intents())
		})
	}
}

func TestPreFlight_Fails(t *testing.T) {
	w := newWorld()
	w.err = errors.New("boom")
	_, err := pluginIn(w).preFlight(t.Context(), contextFor(thePod()))
	assert.True(t, framework.IsKind(err, framework.KindInternal), "%v", err)
	assert.Equal(t, "PersistentVolumeClaim default/data", framework.AsError(Name, err).Object.String())
}

// TestPreBind checks, writes and waits, and then repeats that as after a crash.
func TestPreBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(thePod(), theNode(), theClaim(), local)
		p := pluginIn(w)
		start := func() <-chan error {
			bc := contextFor(thePod())
			next, err := p.preFlight(t.Context(), bc)
			require.NoError(t, err)
			require.Equal(t, framework.Run, next)
			result := make(chan error, 1)
			go func() { result <- p.PreBind(t.Context(), bc) }()
			synctest.Wait()
			return result
		}
		first := start()
		require.Len(t, w.patches, 1)
		second := start()
		assert.Len(t, w.patches, 1, "another replica continues from the state in the API server")

		w.put(volumeNamed("made", gen.ClaimRef(theClaim())))
		w.put(theClaim(gen.SelectedNode("node-a"), gen.BoundToVolume("made"), gen.Version("200")))
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		next, err := p.preFlight(t.Context(), contextFor(thePod()))
		require.NoError(t, err)
		assert.Equal(t, framework.Skip, next, "a repeated call has nothing to do")
	})
}

func TestPreBind_Stops(t *testing.T) {
	w := newWorld(thePod(), theNode(), theClaim(), local)
	p := pluginIn(w)
	require.Error(t, p.PreBind(t.Context(), contextFor(thePod())), "without PreFlight there is no plan")
	assert.Empty(t, w.patches)

	boom := errors.New("boom")
	w.fail = func(string) error { return boom }
	bc := contextFor(thePod())
	_, err := p.preFlight(t.Context(), bc)
	require.NoError(t, err)
	require.ErrorIs(t, p.PreBind(t.Context(), bc), boom, "PreBind does not wait after a failed write")

	w.patches = nil
	require.NoError(t, p.PreBindRollBack(t.Context(), bc))
	assert.Empty(t, w.patches, "the plugin undoes no writes")
}
