// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/binder/compact"
	"github.com/prebind/prebind/binder/volumes"
	"github.com/prebind/prebind/test/gen"
)

func TestSelections(t *testing.T) {
	start := time.Unix(1000, 0)
	none, there, elsewhere := theClaim(), theClaim(), theClaim()
	there.Annotations = map[string]string{volume.AnnSelectedNode: "node-a"}
	elsewhere.Annotations = map[string]string{volume.AnnSelectedNode: "node-b"}
	again := there.DeepCopy()
	again.UID = "another"
	bound := there.DeepCopy()
	bound.Spec.VolumeName, bound.Status.Phase = "volume", corev1.ClaimBound
	bound.Annotations[volume.AnnBindCompleted] = "yes"
	packed, err := volumes.PackClaim(bound.DeepCopy())
	require.NoError(t, err)
	require.Implements(t, (*compact.Object)(nil), packed)
	cases := map[string]struct {
		reason string
		// events sends the events one second apart, the first at start.
		events func(step func(), s *Selections)
		claim  *corev1.PersistentVolumeClaim
		want   time.Time
	}{
		"Update": {
			reason: "the wait starts when the claim gets its node",
			events: func(step func(), s *Selections) { s.OnAdd(none, true); step(); s.OnUpdate(none, there) },
			want:   start.Add(time.Second),
		},
		"Later": {
			reason: "a later update does not restart the wait",
			events: func(step func(), s *Selections) { s.OnUpdate(none, there); step(); s.OnUpdate(there, there.DeepCopy()) },
			want:   start,
		},
		"Added": {
			reason: "an interrupted watch shows the claim with its node",
			events: func(_ func(), s *Selections) { s.OnAdd(there, false) },
			want:   start,
		},
		"Initial": {
			reason: "the node was chosen before this process began",
			events: func(step func(), s *Selections) { s.OnAdd(there, true); step(); s.OnUpdate(there, there.DeepCopy()) },
		},
		"Elsewhere": {
			reason: "provisioning for another node is another wait",
			events: func(_ func(), s *Selections) { s.OnUpdate(none, elsewhere) },
		},
		"Changed": {
			reason: "the node was changed",
			events: func(step func(), s *Selections) { s.OnUpdate(none, elsewhere); step(); s.OnUpdate(elsewhere, there) },
			want:   start.Add(time.Second),
		},
		"Replaced": {
			reason: "an earlier claim had the same name",
			events: func(_ func(), s *Selections) { s.OnUpdate(none, there) }, claim: again,
		},
		"TakenBack": {
			reason: "the provisioner requested another node",
			events: func(_ func(), s *Selections) { s.OnUpdate(none, there); s.OnUpdate(there, none) },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := clocktesting.NewFakePassiveClock(start)
			s := NewSelections(c)
			tc.events(func() { c.SetTime(c.Now().Add(time.Second)) }, s)
			claim := tc.claim
			if claim == nil {
				claim = there
			}
			assert.Equal(t, tc.want, s.since(claim, "node-a"), tc.reason)
		})
	}
	for name, end := range map[string]func(s *Selections){
		"Bound":   func(s *Selections) { s.OnUpdate(there, packed) },
		"Deleted": func(s *Selections) { s.OnDelete(there) },
		"Missed":  func(s *Selections) { s.OnDelete(cache.DeletedFinalStateUnknown{Key: "default/data", Obj: there}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSelections(clocktesting.NewFakePassiveClock(start))
			s.OnUpdate(none, there)
			require.NotEmpty(t, s.of)
			end(s)
			assert.Empty(t, s.of, "only claims that are being provisioned have an entry")
		})
	}
}

// PreFlight reports the start of the wait to the engine.
func TestPreFlight_Since(t *testing.T) {
	claim := theClaim()
	claim.Annotations = map[string]string{volume.AnnSelectedNode: "node-a"}
	p := pluginIn(newWorld(thePod(), theNode(), gen.StorageClass("local", "test.prebind.dev"), claim))
	p.selections = NewSelections(clocktesting.NewFakePassiveClock(time.Unix(1000, 0)))
	p.selections.OnAdd(claim, false)
	bc := contextFor(gen.Pod("web", gen.UID("pod-1"), gen.UsesClaim("data")))
	require.NoError(t, p.SetupBindContextExtension(t.Context(), p.h.Cached, bc))
	_, err := p.PreFlight(bc)
	require.NoError(t, err)
	require.Len(t, bc.ExpectedWaits(), 1)
	assert.Equal(t, time.Unix(1000, 0), bc.ExpectedWaits()[0].Since)
}
