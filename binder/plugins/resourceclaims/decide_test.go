// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

var (
	now  = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	both = []string{"attached", "programmed"}
	yes  = map[string]metav1.ConditionStatus{"attached": "True", "programmed": "True"}
)

// labelled is an allocation for the nodes of a zone.
func labelled(zone string) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		allocated("pool", "gpu-0")(claim)
		claim.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}
	}
}

func anywhere(claim *resourcev1.ResourceClaim) { claim.Status.Allocation.NodeSelector = nil }

// share makes the device of the claim one of its shares.
func share(of, said string) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		if of != "" {
			claim.Status.Allocation.Devices.Results[0].ShareID = new(types.UID(of))
		}
		if said != "" {
			claim.Status.Devices[0].ShareID = &said
		}
	}
}

func full(claim *resourcev1.ResourceClaim) {
	for i := range resourcev1.ResourceClaimReservedForMaxSize {
		reservedTo(fmt.Sprintf("other-%d", i))(claim)
	}
}

func TestAssess(t *testing.T) {
	inZone := gen.Node("node-a", gen.Zone("z1"))
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		ref    reference
		claim  []claimOption
		want   state
		refuse string
	}{
		"Unallocated":  {reason: "upstream no-resources: nobody has given it devices", want: unallocated},
		"Unreserved":   {reason: "upstream claim-reference, good-topology", claim: []claimOption{allocated("node-a", "gpu-0")}, want: unreserved},
		"Reserved":     {reason: "upstream reserved-okay, bound-claim-without-binding-conditions", claim: []claimOption{allocated("node-a", "gpu-0"), reservedTo("web")}, want: ready},
		"ByOthers":     {reason: "a claim is shared", claim: []claimOption{allocated("node-a", "gpu-0"), reservedTo("db")}, want: unreserved},
		"SameName":     {reason: "an earlier pod of the name is another one", claim: []claimOption{allocated("node-a", "gpu-0"), oldReservation}, want: unreserved},
		"Deleted":      {reason: "upstream deleted-claim", claim: []claimOption{allocated("node-a", "gpu-0"), reservedTo("web"), meta1(gen.Terminating())}, refuse: "being deleted"},
		"WrongNode":    {reason: "upstream wrong-topology", claim: []claimOption{allocated("node-b", "gpu-0")}, refuse: "are not available on node node-a"},
		"WrongNodeToo": {reason: "also when it is reserved", claim: []claimOption{allocated("node-b", "gpu-0"), reservedTo("web")}, refuse: "not available"},
		"Zone":         {reason: "the node is in the zone", claim: []claimOption{labelled("z1")}, want: unreserved},
		"OtherZone":    {reason: "upstream wrong-topology, by labels", claim: []claimOption{labelled("z2")}, refuse: "not available"},
		"Anywhere":     {reason: "without a selector the devices are for every node", claim: []claimOption{allocated("node-b", "gpu-0"), anywhere}, want: unreserved},
		"BadSelector":  {reason: "what cannot be read is not guessed", claim: []claimOption{allocated("node-a"), badSelector}, refuse: "invalid node selector"},
		"Full":         {reason: "reserved-for max", claim: []claimOption{allocated("node-a", "gpu-0"), full}, refuse: "256 pods"},
		"FullWithUs":   {reason: "the pod is one of them", claim: []claimOption{allocated("node-a", "gpu-0"), fullWithUs}, want: ready},
		"Own":          {reason: "upstream claim-template", ref: reference{generated: true}, claim: []claimOption{made("web"), allocated("node-a", "gpu-0")}, want: unreserved},
		"WrongOwner":   {reason: "upstream wrong-claim", ref: reference{generated: true}, claim: []claimOption{made("db"), allocated("node-a", "gpu-0"), reservedTo("web")}, refuse: "not created for this pod"},
		"NoOwner":      {reason: "missing owner", ref: reference{generated: true}, claim: []claimOption{allocated("node-a", "gpu-0")}, refuse: "not created for this pod"},
		"Group": {
			reason: "the scheduler has reserved it for the PodGroup, upstream reserved-okay-podgroup", pod: thePod("web", grouped), ref: reference{generated: true},
			claim: []claimOption{ofGroup("team"), allocated("node-a", "gpu-0"), reservedToGroup("team")}, want: ready,
		},
		"GroupUnreserved": {
			reason: "nobody has, and it is not ours to do", pod: thePod("web", grouped), ref: reference{generated: true},
			claim: []claimOption{ofGroup("team"), allocated("node-a", "gpu-0")}, refuse: "belongs to a PodGroup",
		},
		"Extended":           {reason: "kube-scheduler has made and reserved it", ref: reference{generated: true, extended: true}, claim: []claimOption{made("web"), allocated("node-a", "gpu-0"), reservedTo("web")}, want: ready},
		"ExtendedUnreserved": {reason: "only it does", ref: reference{generated: true, extended: true}, claim: []claimOption{made("web"), allocated("node-a", "gpu-0")}, refuse: "extended resources"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pod := tc.pod
			if pod == nil {
				pod = thePod("web")
			}
			b := basis{pod: pod, node: inZone, attempt: "here-1", classes: sets.New(class), timeout: timeout, since: now, now: now}
			a, err := b.assess(tc.ref, theClaim("c", tc.claim...))
			if tc.refuse != "" {
				require.True(t, framework.IsKind(err, framework.KindRefuse), "%s: %v", tc.reason, err)
				assert.ErrorContains(t, err, tc.refuse, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, a.state, tc.reason)
		})
	}
}

func oldReservation(claim *resourcev1.ResourceClaim) {
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "web", UID: "before"})
}

func badSelector(claim *resourcev1.ResourceClaim) {
	claim.Status.Allocation.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Operator = "?"
}

func fullWithUs(claim *resourcev1.ResourceClaim) {
	full(claim)
	claim.Status.ReservedFor[100] = consumer("web")
}

func TestConditions(t *testing.T) {
	cases := map[string]struct {
		reason string
		claim  []claimOption
		// began is how long ago the bind began to wait.
		began  time.Duration
		want   state
		waits  string
		refuse string
	}{
		"None":      {reason: "upstream bound-claim-without-binding-conditions", claim: []claimOption{allocated("node-a", "gpu-0")}, want: ready},
		"Succeeded": {reason: "upstream bound-claim-with-succeeded-binding-conditions", claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil), says("gpu-0", yes)}, want: ready},
		"SucceededLate": {
			reason: "what is true in the end is true, also after the time", want: ready,
			claim: []claimOption{allocated("node-a", "gpu-0"), allocatedAt(now.Add(-time.Hour)), needs(both, nil), says("gpu-0", yes)},
		},
		"Silent": {reason: "upstream bind-claim-with-binding-conditions: the driver says nothing yet", claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil)}, want: unready, waits: "attached"},
		"Half": {
			reason: "all of them have to be true", want: unready, waits: "programmed",
			claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil), says("gpu-0", map[string]metav1.ConditionStatus{"attached": "True", "programmed": "Unknown"})},
		},
		"Failed": {
			reason: "upstream bound-claim-with-failed-binding", refuse: "failed: broken (Why) because",
			claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, []string{"broken"}), says("gpu-0", map[string]metav1.ConditionStatus{"attached": "True", "broken": "True"})},
		},
		"FailedAndTrue": {
			reason: "a failure counts more", refuse: "failed",
			claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, []string{"broken"}), says("gpu-0", map[string]metav1.ConditionStatus{"attached": "True", "programmed": "True", "broken": "True"})},
		},
		"NotFailed": {
			reason: "a failure condition that is false is none", want: ready,
			claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, []string{"broken"}), says("gpu-0", map[string]metav1.ConditionStatus{"attached": "True", "programmed": "True", "broken": "False"})},
		},
		"NoFailureWithoutCondition": {
			reason: "upstream looks at no failure of a device that has no binding condition", want: ready,
			claim: []claimOption{allocated("node-a", "gpu-0"), needs(nil, []string{"broken"}), says("gpu-0", map[string]metav1.ConditionStatus{"broken": "True"})},
		},
		"Mixed": {
			reason: "upstream bound-claim-with-mixed-binding-conditions: one true, one false, and the time is over", refuse: "programmed",
			claim: []claimOption{allocated("node-a", "gpu-0"), allocatedAt(now.Add(-timeout)), needs(both, nil), says("gpu-0", map[string]metav1.ConditionStatus{"attached": "True", "programmed": "False"})},
		},
		"TimedOut": {
			reason: "upstream bound-claim-with-timed-out-binding: the time counts from the allocation, whoever waits", refuse: "more than 10m0s ago",
			claim: []claimOption{allocated("node-a", "gpu-0"), allocatedAt(now.Add(-timeout)), needs(both, nil), says("gpu-0", nil)},
		},
		"InTime": {
			reason: "upstream prebind-fail-with-binding-timeout, at its beginning", want: unready, waits: "attached",
			claim: []claimOption{allocated("node-a", "gpu-0"), allocatedAt(now.Add(10*time.Second - timeout)), needs(both, nil)},
		},
		"NoTime":     {reason: "a claim may not tell when it was allocated: then the bind's own time counts", began: timeout - time.Second, claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil)}, want: unready, waits: "attached"},
		"NoTimeOver": {reason: "and it ends, too", began: timeout, claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil)}, refuse: "still waiting for"},
		"SecondDevice": {
			reason: "every device counts", want: unready, waits: "gpu-1",
			claim: []claimOption{allocated("node-a", "gpu-0", "gpu-1"), needs(both, nil), says("gpu-0", yes)},
		},
		"SecondDeviceFailed": {
			reason: "a failure is final also while another device has not said anything", refuse: "gpu-1",
			claim: []claimOption{allocated("node-a", "gpu-0", "gpu-1"), needs(both, []string{"broken"}), says("gpu-1", map[string]metav1.ConditionStatus{"broken": "True"})},
		},
		"OtherDevice": {reason: "what is said of another device is nothing", want: unready, waits: "attached", claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil), says("gpu-9", yes)}},
		"Share":       {reason: "consumable capacity: what is said of the share", want: ready, claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil), says("gpu-0", yes), share("s1", "s1")}},
		"OtherShare":  {reason: "another share of the device is another", want: unready, waits: "attached", claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil), says("gpu-0", yes), share("s1", "s2")}},
		"NoShareSaid": {reason: "nothing was said of the share", want: unready, waits: "attached", claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil), says("gpu-0", yes), share("s1", "")}},
		"ShareOfNone": {reason: "of a share that we do not have", want: unready, waits: "attached", claim: []claimOption{allocated("node-a", "gpu-0"), needs(both, nil), says("gpu-0", yes), share("", "s1")}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim := theClaim("c", append(tc.claim, reservedTo("web"))...)
			b := basis{pod: thePod("web"), node: gen.Node("node-a"), attempt: "here-1", timeout: timeout, since: now.Add(-tc.began), now: now}
			a, err := b.assess(reference{}, claim)
			if tc.refuse != "" {
				require.True(t, framework.IsKind(err, framework.KindRefuse), "%s: %v", tc.reason, err)
				assert.ErrorContains(t, err, tc.refuse, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, a.state, tc.reason)
			assert.Contains(t, a.waits, tc.waits, tc.reason)
			if tc.want == unready {
				assert.True(t, a.until.After(now), "it is given up some time")
			}
		})
	}
}

func TestReadiness(t *testing.T) {
	b := basis{pod: thePod("web", uses("a", "b")), node: gen.Node("node-a"), attempt: "here-1", classes: sets.New(class), timeout: timeout, since: now, now: now}
	_, err := b.readiness(claims{"a": theClaim("a"), "b": nil})
	require.True(t, framework.IsKind(err, framework.KindRefuse), "%v", err)
	require.ErrorContains(t, err, "ResourceClaim default/b: does not exist")
	_, err = b.readiness(claims{"a": theClaim("a"), "b": theClaim("b", ofOtherClass)})
	require.ErrorContains(t, err, `"tpu"`, "one claim is enough")
	r, err := b.readiness(claims{"a": theClaim("a"), "b": theClaim("b", allocated("node-a", "gpu-0"), reservedTo("web"), marked("web", "there-1"))})
	require.NoError(t, err)
	assert.Len(t, r.in(unallocated), 1)
	assert.Len(t, r.in(borrowed), 1, "the reservation is another attempt's")
}

func TestReadiness_Words(t *testing.T) {
	claim := func(name string) *resourcev1.ResourceClaim { return theClaim(name) }
	r := readiness{basis: basis{pod: thePod("web"), node: gen.Node("node-a")}, unmade: []reference{{of: "gpu", generated: true}}, claims: []assessment{
		{claim: claim("a"), state: unreserved}, {claim: claim("b"), state: unallocated}, {claim: claim("c"), state: borrowed},
		{claim: claim("d"), state: unready, waits: "the switch", until: now.Add(time.Hour)}, {claim: claim("e"), state: ready},
		{claim: claim("f"), state: unready, waits: "the cable", until: now.Add(time.Minute)},
	}}
	assert.False(t, r.done())
	assert.Len(t, r.intents(), 6, "all but the one that is ready")
	assert.Empty(t, r.toTake(), "nothing is reserved for a pod that may have to wait for long")
	waits := r.waits()
	require.Len(t, waits, 3)
	assert.Equal(t, podObject(thePod("web")), waits[0].Object)
	assert.Contains(t, waits[0].For, `"gpu"`)
	assert.Equal(t, framework.Waiting{Object: claimObject("default", "d"), For: "the switch", Until: now.Add(time.Minute)}, waits[1], "until the first claim is rejected")
	r.unmade = nil
	require.Len(t, r.toTake(), 3)
	assert.Equal(t, unallocated, r.toTake()[0].state, "devices come first")
	assert.True(t, readiness{claims: r.claims[4:5]}.done())
	assert.Empty(t, readiness{}.waits())
}
