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

// forOnePod is the claim data, bound, for one pod at a time.
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
		// free says that no pods are listed.
		free bool
	}{
		"NotExclusive": {reason: "a claim of another mode costs nothing", claim: theClaim(gen.BoundToVolume("pv")), others: []client.Object{another("a")}, free: true},
		"Unused":       {reason: "no other pod uses the claim", claim: forOnePod()},
		"Used": {
			reason: "two pods would write to one volume", claim: forOnePod(), others: []client.Object{another("a")},
			want: framework.KindRefuse, says: "pod a on node node-b",
		},
		"UsedOnManyPages": {
			reason: "every pod is looked at", claim: forOnePod(), want: framework.KindRefuse, says: "pod e on",
			others: []client.Object{
				gen.Pod("a", gen.BoundTo("n")), gen.Pod("b", gen.BoundTo("n")), gen.Pod("c", gen.BoundTo("n")), gen.Pod("d", gen.BoundTo("n")), another("e"),
			},
		},
		"UsedByTerminating": {
			reason: "it has not ended yet", claim: forOnePod(), others: []client.Object{another("a", gen.Terminating())},
			want: framework.KindRefuse, says: "pod a",
		},
		"Succeeded":      {reason: "it has ended", claim: forOnePod(), others: []client.Object{ended(another("a"), corev1.PodSucceeded)}},
		"Failed":         {reason: "it has ended", claim: forOnePod(), others: []client.Object{ended(another("a"), corev1.PodFailed)}},
		"Pending":        {reason: "it has no node, and may never get one", claim: forOnePod(), others: []client.Object{another("a", gen.BoundTo(""))}},
		"OtherNamespace": {reason: "that is another claim", claim: forOnePod(), others: []client.Object{another("a", gen.InNamespace("other"))}},
		"Itself":         {reason: "the pod was bound a moment ago", claim: forOnePod(), others: []client.Object{another("web-1", gen.UID("pod-1"))}},
		"OtherClaim":     {reason: "that is another claim", claim: forOnePod(), others: []client.Object{gen.Pod("a", gen.BoundTo("n"), gen.UsesClaim("logs"))}},
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
			assert.Equal(t, tc.free, next == framework.Skip, "only PreBind reserves")
		})
	}
}

// TestExclusiveEphemeral: a generic ephemeral claim is made for its pod, so that
// there is nobody to look for.
func TestExclusiveEphemeral(t *testing.T) {
	pod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp"))
	claim := claimNamed("web-tmp", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"), gen.OwnedBy("Pod", "web", "pod-1"))
	w := newWorld(theNode(), claim, volumeNamed("pv", gen.ClaimRef(claim)))
	_, err := pluginIn(w).preFlight(t.Context(), contextFor(pod))
	require.NoError(t, err)
	assert.Zero(t, w.podLists)
}

// TestExclusiveBeforeWriting: nothing is written for a claim that is in use.
func TestExclusiveBeforeWriting(t *testing.T) {
	w := newWorld(theNode(), local, theClaim(gen.AccessModes(corev1.ReadWriteOncePod)), another("a"))
	_, err := pluginIn(w).preFlight(t.Context(), contextFor(thePod()))
	assert.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
}

// TestExclusiveAfterWaiting: another pod got the claim while this one waited.
func TestExclusiveAfterWaiting(t *testing.T) {
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

// onePod is a world with a bound claim for one pod at a time, and a bind of a pod
// that uses it, up to the end of PreBind.
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

// TestPreFlightReservesNothing: a bind may be denied after PreFlight, and the plugin
// does not hear of it.
func TestPreFlightReservesNothing(t *testing.T) {
	w, p, preBind := onePod(t)
	w.put(sharer("first"))
	w.put(sharer("second"))
	next, err := p.preFlight(t.Context(), contextFor(sharer("first")))
	require.NoError(t, err)
	assert.Equal(t, framework.Run, next, "PreBind reserves the claim")
	_, err = preBind("second")
	require.NoError(t, err, "the first was denied after its PreFlight")

	dry := contextFor(sharer("first"))
	dry.DryRun = true
	next, err = p.preFlight(t.Context(), dry)
	require.NoError(t, err)
	assert.Equal(t, framework.Skip, next, "there is nothing to write or to wait for")
	assert.Empty(t, dry.Intents())
}

// TestExclusiveRace: two pods that are bound at the same time do not both get the
// claim, although neither has a node yet.
func TestExclusiveRace(t *testing.T) {
	w, p, preBind := onePod(t)
	w.put(sharer("first"))
	w.put(sharer("second"))
	first, err := preBind("first")
	require.NoError(t, err)
	second, err := preBind("second")
	assert.True(t, framework.IsKind(err, framework.KindWait), "the first may be bound at any moment: %v", err)
	assert.ErrorContains(t, err, "pod first")
	_, err = preBind("first")
	require.NoError(t, err, "a repeated call has the claim already")

	require.NoError(t, p.PreBindRollBack(t.Context(), second))
	_, err = preBind("second")
	assert.True(t, framework.IsKind(err, framework.KindWait), "it had nothing to release: %v", err)
	elsewhere := contextFor(sharer("first"))
	elsewhere.Node = gen.Node("node-b")
	require.NoError(t, p.PreBindRollBack(t.Context(), elsewhere))
	_, err = preBind("second")
	assert.True(t, framework.IsKind(err, framework.KindWait), "an earlier bind of the pod is not this one: %v", err)

	require.NoError(t, p.reserveExclusive(t.Context(), elsewhere, []*corev1.PersistentVolumeClaim{forOnePod()}), "the later bind of the same pod takes over")
	require.NoError(t, p.PreBindRollBack(t.Context(), first))
	_, err = preBind("second")
	assert.True(t, framework.IsKind(err, framework.KindWait), "what the later bind has is not the earlier bind's to release: %v", err)
	require.NoError(t, p.PreBindRollBack(t.Context(), elsewhere))
	second, err = preBind("second")
	require.NoError(t, err, "a bind that is rolled back needs no claim")
	assert.Len(t, p.reservations.byClaim, 1)
	w.put(sharer("second", gen.BoundTo("node-a")))
	p.PostBind(t.Context(), second)
	assert.Empty(t, p.reservations.byClaim, "a bind that is over needs no reservation")
	_, err = preBind("first")
	assert.True(t, framework.IsKind(err, framework.KindRefuse), "the list of pods shows who has it: %v", err)
	w.remove(sharer("second"))
	_, err = preBind("first")
	require.NoError(t, err)
}

// TestExclusiveFailure: a bind reserves all of its claims or none, and a round that
// fails does not release what an earlier one has reserved, for that bind may be on
// its way.
func TestExclusiveFailure(t *testing.T) {
	logs := claimNamed("logs", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv2"))
	w, p, preBind := onePod(t)
	w.put(sharer("first"))
	_, err := preBind("first")
	require.NoError(t, err)
	both := contextFor(sharer("second"))
	err = p.reserveExclusive(t.Context(), both, []*corev1.PersistentVolumeClaim{logs, forOnePod()})
	assert.True(t, framework.IsKind(err, framework.KindWait), "%v", err)
	assert.Equal(t, "PersistentVolumeClaim default/data", framework.AsError(Name, err).Object.String())
	assert.Len(t, p.reservations.byClaim, 1, "all or none")

	w.err = errors.New("boom")
	require.ErrorIs(t, p.reserveExclusive(t.Context(), contextFor(sharer("first")), []*corev1.PersistentVolumeClaim{forOnePod()}), w.err)
	assert.Len(t, p.reservations.byClaim, 1, "the roll-back releases it")
}
