// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/gen"
)

// TestLedger checks that the ledger reports every violation and no permitted state.
func TestLedger(t *testing.T) {
	pod := func(name, node, gpu string) *corev1.Pod {
		return gen.Pod(name, gen.UID(types.UID(name)), gen.BoundTo(node), gen.Annotation("device.prebind.dev/gpu", gpu))
	}
	claim := func(name, device string) *resourcev1.ResourceClaim {
		return gen.ResourceClaim(name, gen.UID(types.UID(name)), gen.RequestsDevices("d", 1), gen.AllocatedFor("node-1", "d", gen.Device(device)))
	}
	cases := map[string]struct {
		reason string
		see    func(l *ledger)
		wrong  int
	}{
		"Moved":      {reason: "a pod must not move to another node", wrong: 1, see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "")); l.pod(nil, pod("a", "node-2", "")) }},
		"Unbound":    {reason: "a bound pod must not become pending again", wrong: 1, see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "")); l.pod(nil, pod("a", "", "")) }},
		"TwoHolders": {reason: "two pods must not hold the same device", wrong: 1, see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1")); l.pod(nil, pod("b", "node-1", "1")) }},
		"TooMuch":    {reason: "the shares of a device must not exceed 1", wrong: 1, see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1:0.5")); l.pod(nil, pod("b", "node-1", "2,1")) }},
		"Undecided":  {reason: "the policy decides every bind for its own user", wrong: 1, see: func(l *ledger) { l.pod(nil, gen.Pod("a", gen.BoundTo("node-1"), gen.Scheduler(byHand))) }},
		"Halves":     {reason: "two pods may share a device", see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1:0.5")); l.pod(nil, pod("b", "node-1", "1:0.5")) }},
		"OtherNode":  {reason: "each node has separate devices", see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1")); l.pod(nil, pod("b", "node-2", "1")) }},
		"InTurn": {reason: "a deleted pod holds no device", see: func(l *ledger) {
			l.pod(nil, pod("a", "node-1", "1"))
			l.pod(pod("a", "node-1", "1"), nil)
			l.pod(nil, pod("b", "node-1", "1"))
		}},
		"Deselected": {reason: "a selected node must not be removed", wrong: 1, see: func(l *ledger) { l.claim(gen.Claim("c", gen.SelectedNode("node-1")), gen.Claim("c")) }},
		"Selected":   {reason: "a selected node may be set once", see: func(l *ledger) { l.claim(gen.Claim("c"), gen.Claim("c", gen.SelectedNode("node-1"))) }},
		"TwoClaims":  {reason: "a device must not be allocated to two claims", wrong: 1, see: func(l *ledger) { l.resourceClaim(nil, claim("a", "x")); l.resourceClaim(nil, claim("b", "x")) }},
		"ClaimsInTurn": {reason: "a released device may be allocated again", see: func(l *ledger) {
			l.resourceClaim(nil, claim("a", "x"))
			l.resourceClaim(claim("a", "x"), nil)
			l.resourceClaim(nil, claim("b", "x"))
		}},
		"ClaimsOfTwo":   {reason: "two claims may have two devices", see: func(l *ledger) { l.resourceClaim(nil, claim("a", "x")); l.resourceClaim(nil, claim("b", "y")) }},
		"SeenOnceAgain": {reason: "a list repeats events of a watch", see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1")); l.pod(nil, pod("a", "node-1", "1")) }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := emptyLedger()
			tc.see(l)
			assert.Len(t, l.wrongs(), tc.wrong, tc.reason)
		})
	}
}

// TestLeft checks that the checker reports every remaining grant, mark and reservation of a cluster at rest.
func TestLeft(t *testing.T) {
	running := gen.Pod("a", gen.UID("a"), gen.BoundTo("node-1"), gen.Scheduler(byHand))
	running.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x", ResourceClaimName: new("x")}}
	waiting := gen.Pod("b", gen.UID("b"), gen.Scheduler(byHand))
	record := func(key, text string) corev1.ConfigMap {
		c := corev1.ConfigMap{Data: map[string]string{"node": "node-1", key: text}}
		c.Labels = map[string]string{component: "prebind-device-record"}
		return c
	}
	cases := map[string]struct {
		reason string
		state  state
		wrong  int
	}{
		"Nothing":        {reason: "the record belongs to a bound pod", state: state{records: []corev1.ConfigMap{record("a", `{"bound":true}`)}}},
		"NotBound":       {reason: "the grant belongs to a pod that is not bound", state: state{records: []corev1.ConfigMap{record("b", `{}`)}}, wrong: 1},
		"NotConfirmed":   {reason: "no replica has confirmed the grant", state: state{records: []corev1.ConfigMap{record("a", `{}`)}}, wrong: 1},
		"PodGone":        {reason: "the pod of the grant does not exist", state: state{records: []corev1.ConfigMap{record("c", `{"bound":true}`)}}, wrong: 1},
		"Locked":         {reason: "the node is locked", state: state{records: []corev1.ConfigMap{record("node-lock", `{}`)}}, wrong: 1},
		"Marked":         {reason: "the claim has a mark", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.Annotation(markPrefix+"a.1", ""))}}, wrong: 1},
		"ReservedGone":   {reason: "the claim is reserved for a deleted pod", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.ReservedForPod("c", "c"))}}, wrong: 1},
		"ReservedNot":    {reason: "the claim is reserved for a pod that is not bound", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.ReservedForPod("b", "b"))}}, wrong: 1},
		"ReservedRight":  {reason: "the claim is reserved for a bound pod", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.ReservedForPod("a", "a"))}}},
		"NotReservedFor": {reason: "the claim of a bound pod is not reserved", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.OwnedBy("Pod", "a", "a"))}}, wrong: 1},
		"NotUsed":        {reason: "the pod uses another claim", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("y", gen.OwnedBy("Pod", "a", "a"))}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := &tc.state
			s.pods = map[types.UID]*corev1.Pod{"a": running, "b": waiting}
			s.checkRecords()
			s.checkClaims()
			assert.Len(t, s.found, tc.wrong, tc.reason)
		})
	}
}
