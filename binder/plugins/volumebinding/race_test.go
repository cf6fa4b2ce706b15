// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// bind is a bind of a pod in one plugin.
type bind struct {
	*Plugin
	bc *framework.BindContext
}

// prepared returns a bind after its PreFlight.
func prepared(t *testing.T, p *Plugin, pod *corev1.Pod) bind {
	t.Helper()
	b := bind{Plugin: p, bc: contextFor(pod)}
	_, err := p.preFlight(t.Context(), b.bc)
	require.NoError(t, err)
	return b
}

// Exactly one pod gets the volume. The next call of the other pod decides again. The binds can be
// in two replicas, because they share only the API server.
func TestPreBind_TwoPodsOneVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		static := gen.StorageClass("local", "kubernetes.io/no-provisioner")
		one := gen.Pod("one", gen.UID("one"), gen.UsesClaim("c1"))
		two := gen.Pod("two", gen.UID("two"), gen.UsesClaim("c2"))
		w := newWorld(one, two, theNode(), static, claimNamed("c1"), claimNamed("c2"), volumeNamed("pv"))
		first, second := prepared(t, pluginIn(w), one), prepared(t, pluginIn(w), two)

		result := make(chan error, 1)
		go func() { result <- first.PreBind(t.Context(), first.bc) }()
		synctest.Wait()
		err := second.PreBind(t.Context(), second.bc)
		assert.True(t, framework.IsKind(err, framework.KindWait), "the client must retry: %v", err)
		assert.Equal(t, 1, w.applied, "one write had an effect")

		_, err = second.preFlight(t.Context(), contextFor(two))
		assert.True(t, framework.IsKind(err, framework.KindRefuse), "no other volume exists: %v", err)
		w.put(volumeNamed("pv2"))
		again := prepared(t, second.Plugin, two)
		pl, err := planned.Get(again.bc)
		require.NoError(t, err)
		assert.Equal(t, "pv2", pl.static[0].volume.Name, "the second pod gets another volume")

		w.put(claimNamed("c1", gen.BoundToVolume("pv"), gen.Version("11")))
		require.NoError(t, <-result)
	})
}

// All pods wait for one claim and continue when it is bound. One write is enough, for an existing
// and for a provisioned volume.
func TestPreBind_ManyPodsOneClaim(t *testing.T) {
	cases := map[string]struct {
		volumes []*corev1.PersistentVolume
		patched string
	}{
		"Static":  {volumes: []*corev1.PersistentVolume{volumeNamed("pv"), volumeNamed("pv2")}, patched: "pv"},
		"Dynamic": {patched: "data"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const pods = 20
				w := newWorld(theNode(), local, theClaim())
				for _, pv := range tc.volumes {
					w.put(pv)
				}
				replicas := []*Plugin{pluginIn(w), pluginIn(w)}
				var binds []bind
				for i := range pods {
					pod := gen.Pod("web-"+strconv.Itoa(i), gen.UID(types.UID(strconv.Itoa(i))), gen.UsesClaim("data"))
					w.put(pod)
					binds = append(binds, prepared(t, replicas[i%2], pod))
				}
				results := make(chan error, pods)
				for _, b := range binds {
					go func() { results <- b.PreBind(t.Context(), b.bc) }()
				}
				synctest.Wait()
				assert.Equal(t, 1, w.applied, "one write had an effect")
				for _, p := range w.patches {
					assert.Equal(t, tc.patched, p.name, "all binds patch the same object")
				}
				assert.Empty(t, results, "all binds wait")

				w.put(volumeNamed("pv", gen.ClaimRef(theClaim()), gen.Version("300")))
				w.put(theClaim(gen.SelectedNode("node-a"), gen.BoundToVolume("pv"), gen.Version("300")))
				for range pods {
					require.NoError(t, <-results)
				}
			})
		})
	}
}

// The cache can hold a deleted claim. A volume that is bound to a deleted claim cannot be used
// again.
func TestWrite_ReadsTheClaimBeforeItWritesTheVolume(t *testing.T) {
	cases := map[string]*corev1.PersistentVolumeClaim{
		"Gone":        nil,
		"Replaced":    theClaim(gen.UID("claim-2")),
		"Terminating": theClaim(gen.Terminating()),
		"Bound":       theClaim(gen.BoundToVolume("other")),
		"Selected":    theClaim(gen.SelectedNode("node-b")),
	}
	for name, live := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(volumeNamed("pv"))
			if live != nil {
				w.put(live)
			}
			pl := plan{static: []match{{claim: theClaim(), volume: volumeNamed("pv")}}}
			err := pluginIn(w).write(t.Context(), "node-a", &pl)
			assert.True(t, framework.IsKind(err, framework.KindWait), "the next call decides again: %v", err)
			assert.Empty(t, w.patches)
		})
	}
}

// After a conflict, only an identical write by another client counts.
func TestWrite_Conflicts(t *testing.T) {
	newer := gen.Version("30")
	static := plan{static: []match{{claim: theClaim(), volume: volumeNamed("pv")}}}
	dynamic := plan{dynamic: []*corev1.PersistentVolumeClaim{theClaim()}}
	cases := map[string]struct {
		plan   plan
		volume *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		same   bool
	}{
		"SameClaimRef":       {plan: static, volume: volumeNamed("pv", newer, gen.ClaimRef(theClaim())), claim: theClaim(), same: true},
		"OtherClaimRef":      {plan: static, volume: volumeNamed("pv", newer, gen.ClaimRef(claimNamed("logs"))), claim: theClaim()},
		"EarlierClaimRef":    {plan: static, volume: volumeNamed("pv", newer, gen.ClaimRef(theClaim(gen.UID("")))), claim: theClaim()},
		"VolumeLabelled":     {plan: static, volume: volumeNamed("pv", newer), claim: theClaim()},
		"VolumeTerminating":  {plan: static, volume: volumeNamed("pv", newer, gen.ClaimRef(theClaim()), gen.Terminating()), claim: theClaim()},
		"SameSelectedNode":   {plan: dynamic, claim: theClaim(newer, gen.SelectedNode("node-a")), same: true},
		"OtherSelectedNode":  {plan: dynamic, claim: theClaim(newer, gen.SelectedNode("node-b"))},
		"ClaimLabelled":      {plan: dynamic, claim: theClaim(newer, gen.Label("a", "b"))},
		"ClaimReplaced":      {plan: dynamic, claim: theClaim(newer, gen.UID("claim-2"), gen.SelectedNode("node-a"))},
		"ClaimIsTerminating": {plan: dynamic, claim: theClaim(newer, gen.SelectedNode("node-a"), gen.Terminating())},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(tc.claim)
			if tc.volume != nil {
				w.put(tc.volume)
			}
			pl := plan{static: append([]match(nil), tc.plan.static...), dynamic: append([]*corev1.PersistentVolumeClaim(nil), tc.plan.dynamic...)}
			err := pluginIn(w).write(t.Context(), "node-a", &pl)
			if !tc.same {
				assert.True(t, framework.IsKind(err, framework.KindWait), "%v", err)
				return
			}
			require.NoError(t, err)
			for _, m := range pl.static {
				assert.Equal(t, "30", m.volume.ResourceVersion, "the plan contains the current version, so that wait can recognize older states")
			}
			for _, claim := range pl.dynamic {
				assert.Equal(t, "30", claim.ResourceVersion, "the plan contains the current version, so that wait can recognize older states")
			}
		})
	}
}
