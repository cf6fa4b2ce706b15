// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// forOnePod returns the bound ReadWriteOncePod claim data.
func forOnePod(options ...gen.ClaimOption) *corev1.PersistentVolumeClaim {
	return theClaim(append([]gen.ClaimOption{gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv")}, options...)...)
}

func another(name string, options ...gen.PodOption) *corev1.Pod {
	return gen.Pod(name, append([]gen.PodOption{gen.UID(types.UID(name)), gen.UsesClaim("data"), gen.BoundTo("node-b")}, options...)...)
}

func ended(pod *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	pod.Status.Phase = phase
	return pod
}

func TestExclusive(t *testing.T) {
	pv := volumeNamed("pv", gen.ClaimRef(theClaim()))
	cases := map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		others []client.Object
		want   framework.Kind
		says   string
		// free means that the bind lists no pods.
		free bool
	}{
		"NotExclusive": {reason: "a claim with another access mode needs no list of pods", claim: theClaim(gen.BoundToVolume("pv")), others: []client.Object{another("a")}, free: true},
		"Unused":       {reason: "no other pod uses the claim", claim: forOnePod()},
		"Used": {
			reason: "two pods would write to one volume", claim: forOnePod(), others: []client.Object{another("a")},
			want: framework.KindRefuse, says: "pod a on node node-b",
		},
		"UsedOnManyPages": {
			reason: "the plugin reads all pages of the list", claim: forOnePod(), want: framework.KindRefuse, says: "pod e on",
			others: []client.Object{
				gen.Pod("a", gen.BoundTo("n")), gen.Pod("b", gen.BoundTo("n")), gen.Pod("c", gen.BoundTo("n")), gen.Pod("d", gen.BoundTo("n")), another("e"),
			},
		},
		"UsedByTerminating": {
			reason: "a terminating pod still uses the claim", claim: forOnePod(), others: []client.Object{another("a", gen.Terminating())},
			want: framework.KindRefuse, says: "pod a",
		},
		"Succeeded":      {reason: "the pod has ended", claim: forOnePod(), others: []client.Object{ended(another("a"), corev1.PodSucceeded)}},
		"Failed":         {reason: "the pod has ended", claim: forOnePod(), others: []client.Object{ended(another("a"), corev1.PodFailed)}},
		"Pending":        {reason: "a pod without a node does not use the claim", claim: forOnePod(), others: []client.Object{another("a", gen.BoundTo(""))}},
		"OtherNamespace": {reason: "the pod uses a claim in another namespace", claim: forOnePod(), others: []client.Object{another("a", gen.InNamespace("other"))}},
		"Itself":         {reason: "the list contains the pod itself", claim: forOnePod(), others: []client.Object{another("web-1", gen.UID("pod-1"))}},
		"OtherClaim":     {reason: "the pod uses another claim", claim: forOnePod(), others: []client.Object{gen.Pod("a", gen.BoundTo("n"), gen.UsesClaim("logs"))}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(append(tc.others, theNode(), pv, tc.claim, local)...)
			next, err := pluginIn(w).preFlight(t.Context(), contextFor(thePod()))
			assert.Equal(t, tc.free, w.podLists == 0, "%s: %d lists", tc.reason, w.podLists)
			if tc.want != "" {
				assert.True(t, framework.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				assert.Equal(t, "PersistentVolumeClaim default/data", framework.AsError(Name, err).Object.String())
				assert.ErrorContains(t, err, tc.says)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.free, next == framework.Skip, "only PreBind reserves claims")
		})
	}
}

// A generic ephemeral claim belongs to its pod, so the plugin lists no pods.
func TestExclusive_EphemeralClaim(t *testing.T) {
	pod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp"))
	claim := claimNamed("web-tmp", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"), gen.OwnedBy("Pod", "web", "pod-1"))
	w := newWorld(theNode(), claim, volumeNamed("pv", gen.ClaimRef(claim)))
	_, err := pluginIn(w).preFlight(t.Context(), contextFor(pod))
	require.NoError(t, err)
	assert.Zero(t, w.podLists)
}

func TestExclusive_WritesNothingForAClaimInUse(t *testing.T) {
	w := newWorld(theNode(), local, theClaim(gen.AccessModes(corev1.ReadWriteOncePod)), another("a"))
	_, err := pluginIn(w).preFlight(t.Context(), contextFor(thePod()))
	assert.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
}

// Another pod gets the claim while this pod waits.
func TestExclusive_ChecksAgainAfterTheWait(t *testing.T) {
	unbound := theClaim(gen.AccessModes(corev1.ReadWriteOncePod), gen.SelectedNode("node-a"))
	w := newWorld(thePod(), theNode(), local, unbound)
	p := pluginIn(w)
	bc := contextFor(thePod())
	_, err := p.preFlight(t.Context(), bc)
	require.NoError(t, err)

	w.put(volumeNamed("pv", gen.ClaimRef(theClaim())))
	w.put(forOnePod(gen.SelectedNode("node-a"), gen.Version("11")))
	w.put(another("a"))
	err = p.PreBind(t.Context(), bc)
	assert.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
	assert.ErrorContains(t, err, "pod a")
}

// onePod returns a world with a bound ReadWriteOncePod claim, and a function that binds a pod
// with the claim up to the end of PreBind.
func onePod(t *testing.T) (w *world, p *Plugin, preBind func(name string) (*framework.BindContext, error)) {
	t.Helper()
	w = newWorld(theNode(), forOnePod(), volumeNamed("pv", gen.ClaimRef(theClaim())))
	p = pluginIn(w)
	return w, p, func(name string) (*framework.BindContext, error) {
		bc := contextFor(sharer(name))
		if _, err := p.preFlight(t.Context(), bc); err != nil {
			return bc, err
		}
		return bc, p.PreBind(t.Context(), bc)
	}
}

func sharer(name string, options ...gen.PodOption) *corev1.Pod {
	return gen.Pod(name, append([]gen.PodOption{gen.UID(types.UID(name)), gen.UsesClaim("data")}, options...)...)
}

// A bind can be denied after PreFlight without a call to the plugin.
func TestPreFlight_ReservesNothing(t *testing.T) {
	w, p, preBind := onePod(t)
	w.put(sharer("first"))
	w.put(sharer("second"))
	next, err := p.preFlight(t.Context(), contextFor(sharer("first")))
	require.NoError(t, err)
	assert.Equal(t, framework.Run, next, "PreBind reserves the claim")
	_, err = preBind("second")
	require.NoError(t, err, "the first bind was denied after its PreFlight")

	dry := contextFor(sharer("first"))
	dry.DryRun = true
	next, err = p.preFlight(t.Context(), dry)
	require.NoError(t, err)
	assert.Equal(t, framework.Skip, next, "there is nothing to write or to wait for")
	assert.Empty(t, dry.Intents())
}

// Two concurrent binds request the claim. Neither pod has a node yet.
func TestExclusive_ReservesAClaimForOneBind(t *testing.T) {
	w, p, preBind := onePod(t)
	w.put(sharer("first"))
	w.put(sharer("second"))
	first, err := preBind("first")
	require.NoError(t, err)
	second, err := preBind("second")
	assert.True(t, framework.IsKind(err, framework.KindWait), "the bind of the first pod is in progress: %v", err)
	assert.ErrorContains(t, err, "pod first")
	_, err = preBind("first")
	require.NoError(t, err, "a repeated call keeps the reservation")

	require.NoError(t, p.PreBindRollBack(t.Context(), second))
	_, err = preBind("second")
	assert.True(t, framework.IsKind(err, framework.KindWait), "the roll-back of the second bind releases nothing: %v", err)
	elsewhere := contextFor(sharer("first"))
	elsewhere.Node = gen.Node("node-b")
	require.NoError(t, p.PreBindRollBack(t.Context(), elsewhere))
	_, err = preBind("second")
	assert.True(t, framework.IsKind(err, framework.KindWait), "the roll-back of an earlier bind releases nothing: %v", err)

	require.NoError(t, p.reserveExclusive(t.Context(), elsewhere, []*corev1.PersistentVolumeClaim{forOnePod()}), "a later bind of the same pod takes over the reservation")
	require.NoError(t, p.PreBindRollBack(t.Context(), first))
	_, err = preBind("second")
	assert.True(t, framework.IsKind(err, framework.KindWait), "the earlier bind cannot release the reservation of the later bind: %v", err)
	require.NoError(t, p.PreBindRollBack(t.Context(), elsewhere))
	second, err = preBind("second")
	require.NoError(t, err, "a roll-back releases the claim")
	assert.Len(t, p.reservations.byClaim, 1)
	w.put(sharer("second", gen.BoundTo("node-a")))
	p.PostBind(t.Context(), second)
	assert.Empty(t, p.reservations.byClaim, "PostBind ends the reservation")
	_, err = preBind("first")
	assert.True(t, framework.IsKind(err, framework.KindRefuse), "the list of pods shows the pod that uses the claim: %v", err)
	w.remove(sharer("second"))
	_, err = preBind("first")
	require.NoError(t, err)
}

// A call that fails does not release the reservations of an earlier call, because that bind can
// still be in progress.
func TestExclusive_ReservesAllClaimsOrNone(t *testing.T) {
	logs := claimNamed("logs", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv2"))
	w, p, preBind := onePod(t)
	w.put(sharer("first"))
	_, err := preBind("first")
	require.NoError(t, err)
	both := contextFor(sharer("second"))
	err = p.reserveExclusive(t.Context(), both, []*corev1.PersistentVolumeClaim{logs, forOnePod()})
	assert.True(t, framework.IsKind(err, framework.KindWait), "%v", err)
	assert.Equal(t, "PersistentVolumeClaim default/data", framework.AsError(Name, err).Object.String())
	assert.Len(t, p.reservations.byClaim, 1, "the bind reserves all claims or none")

	w.err = errors.New("boom")
	require.ErrorIs(t, p.reserveExclusive(t.Context(), contextFor(sharer("first")), []*corev1.PersistentVolumeClaim{forOnePod()}), w.err)
	assert.Len(t, p.reservations.byClaim, 1, "the roll-back releases the claim")
}
