// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
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
		want   api.Kind
		says   string
		// free says that no pods are listed.
		free bool
	}{
		"NotExclusive": {reason: "a claim of another mode costs nothing", claim: theClaim(gen.BoundToVolume("pv")), others: []client.Object{another("a")}, free: true},
		"Unused":       {reason: "nobody else has it", claim: forOnePod()},
		"Used": {
			reason: "two pods would write to one volume", claim: forOnePod(), others: []client.Object{another("a")},
			want: api.KindRefuse, says: "the pod a on the node node-b",
		},
		"UsedOnManyPages": {
			reason: "every pod is looked at", claim: forOnePod(), want: api.KindRefuse, says: "the pod e on",
			others: []client.Object{
				gen.Pod("a", gen.BoundTo("n")), gen.Pod("b", gen.BoundTo("n")), gen.Pod("c", gen.BoundTo("n")), gen.Pod("d", gen.BoundTo("n")), another("e"),
			},
		},
		"UsedByTerminating": {
			reason: "it has not ended yet", claim: forOnePod(), others: []client.Object{another("a", gen.Terminating())},
			want: api.KindRefuse, says: "the pod a",
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
			next, err := pluginIn(t, w).PreFlight(t.Context(), contextFor(thePod()))
			assert.Equal(t, tc.free, w.podLists == 0, "%s: %d lists", tc.reason, w.podLists)
			if tc.want != "" {
				assert.True(t, api.IsKind(err, tc.want), "%s: %v", tc.reason, err)
				assert.Equal(t, "PersistentVolumeClaim default/data", api.AsError(Name, err).Object.String())
				assert.ErrorContains(t, err, tc.says)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, api.Skip, next)
		})
	}
}

// TestExclusiveEphemeral: a generic ephemeral claim is made for its pod, so that
// there is nobody to look for.
func TestExclusiveEphemeral(t *testing.T) {
	pod := gen.Pod("web", gen.UID("pod-1"), gen.EphemeralVolume("tmp"))
	claim := claimNamed("web-tmp", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"), gen.OwnedBy("Pod", "web", "pod-1"))
	w := newWorld(theNode(), claim, volumeNamed("pv", gen.ClaimRef(claim)))
	_, err := pluginIn(t, w).PreFlight(t.Context(), contextFor(pod))
	require.NoError(t, err)
	assert.Zero(t, w.podLists)
}

// TestExclusiveBeforeWriting: nothing is written for a claim that is in use.
func TestExclusiveBeforeWriting(t *testing.T) {
	w := newWorld(theNode(), local, theClaim(gen.AccessModes(corev1.ReadWriteOncePod)), another("a"))
	_, err := pluginIn(t, w).PreFlight(t.Context(), contextFor(thePod()))
	assert.True(t, api.IsKind(err, api.KindRefuse), "%v", err)
}

// TestExclusiveAfterWaiting: another pod got the claim while this one waited.
func TestExclusiveAfterWaiting(t *testing.T) {
	unbound := theClaim(gen.AccessModes(corev1.ReadWriteOncePod), gen.SelectedNode("node-a"))
	w := newWorld(thePod(), theNode(), local, unbound)
	p := pluginIn(t, w)
	bc := contextFor(thePod())
	_, err := p.PreFlight(t.Context(), bc)
	require.NoError(t, err)

	w.put(volumeNamed("pv", gen.ClaimRef(theClaim())))
	w.put(forOnePod(gen.SelectedNode("node-a"), gen.Version("11")))
	w.put(another("a"))
	err = p.PreBind(t.Context(), bc)
	assert.True(t, api.IsKind(err, api.KindRefuse), "%v", err)
	assert.ErrorContains(t, err, "the pod a")
}

// TestExclusiveRace: two pods that are bound at the same time do not both get
// the claim, although neither has a node yet.
func TestExclusiveRace(t *testing.T) {
	w := newWorld(theNode(), forOnePod(), volumeNamed("pv", gen.ClaimRef(theClaim())))
	clock := testclock.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	p, err := New(Options{Cached: w, Live: w, Writer: w, Changes: w.hub, Clock: clock})
	require.NoError(t, err)
	pod := func(name string, options ...gen.PodOption) *corev1.Pod {
		return gen.Pod(name, append([]gen.PodOption{gen.UID(types.UID(name)), gen.UsesClaim("data")}, options...)...)
	}
	w.put(pod("first"))
	w.put(pod("second"))
	bind := func(name string) error {
		_, err := p.PreFlight(t.Context(), contextFor(pod(name)))
		return err
	}

	require.NoError(t, bind("first"))
	assert.True(t, api.IsKind(bind("second"), api.KindWait), "the first may be bound at any moment")
	require.NoError(t, bind("first"), "a repeated call has the claim already")

	dry := contextFor(pod("dry"))
	dry.DryRun = true
	_, err = p.PreFlight(t.Context(), dry)
	require.NoError(t, err, "a dry run reserves nothing, and looks at pods only")

	clock.SetTime(clock.Now().Add(reservedFor - 1))
	assert.True(t, api.IsKind(bind("second"), api.KindWait), "the API server may still be at it")
	clock.SetTime(clock.Now().Add(1))
	require.NoError(t, bind("second"), "the bind of the first came to nothing, or a list would show it")
	assert.True(t, api.IsKind(bind("first"), api.KindWait), "now it is the other way round")

	elsewhere := contextFor(pod("second"))
	elsewhere.Node = gen.Node("node-b")
	require.NoError(t, p.PreBindRollBack(t.Context(), elsewhere))
	assert.True(t, api.IsKind(bind("first"), api.KindWait), "what an earlier bind of the pod undoes is not this one's")
	require.NoError(t, p.PreBindRollBack(t.Context(), contextFor(pod("second"))))
	require.NoError(t, bind("first"), "a bind that is rolled back needs no claim")
	assert.Len(t, p.reservations.byClaim, 1, "nothing is kept longer than needed")

	w.put(pod("first", gen.BoundTo("node-a")))
	assert.True(t, api.IsKind(bind("second"), api.KindRefuse), "the first has it, which is known at once")
	w.remove(pod("first"))
	require.NoError(t, bind("second"), "and when it is gone, that is known at once as well")
	w.put(pod("second", gen.Terminating()))
	w.put(pod("first"))
	require.NoError(t, bind("first"), "a pod that is being deleted is not bound any more")
	w.put(pod("first", gen.UID("first-2")))
	w.put(pod("second"))
	require.NoError(t, bind("second"), "a pod of the same name is another one")
}

// TestExclusiveFailure: a pod that was refused holds nothing.
func TestExclusiveFailure(t *testing.T) {
	twoClaims := thePod(gen.UsesClaim("logs"))
	logs := claimNamed("logs", gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv2"))
	w := newWorld(theNode(), forOnePod(), logs, volumeNamed("pv", gen.ClaimRef(theClaim())), volumeNamed("pv2", gen.ClaimRef(logs)),
		gen.Pod("a", gen.UID("a"), gen.UsesClaim("logs"), gen.BoundTo("node-b")))
	p := pluginIn(t, w)
	_, err := p.PreFlight(t.Context(), contextFor(twoClaims))
	assert.True(t, api.IsKind(err, api.KindRefuse), "%v", err)
	assert.Empty(t, p.reservations.byClaim)

	w.put(gen.Pod("b", gen.UID("b")))
	_, ok := p.reservations.reserve(logs.UID, holder{pod: "b", name: "b"})
	require.True(t, ok)
	_, err = p.PreFlight(t.Context(), contextFor(twoClaims))
	assert.True(t, api.IsKind(err, api.KindWait), "%v", err)
	assert.Len(t, p.reservations.byClaim, 1, "all or none")

	w.err = errors.New("boom")
	assert.ErrorIs(t, p.reserveExclusive(t.Context(), contextFor(thePod()), []*corev1.PersistentVolumeClaim{forOnePod()}), w.err)
	assert.Len(t, p.reservations.byClaim, 1, "what cannot be checked is not reserved")
}
