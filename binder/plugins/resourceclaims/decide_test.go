// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
	"github.com/prebind/prebind/internal/claimed"
	"github.com/prebind/prebind/test/gen"
)

var (
	now  = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	both = []string{"attached", "programmed"}
	yes  = map[string]metav1.ConditionStatus{"attached": "True", "programmed": "True"}
)

// deciding is a plugin that only decides.
var deciding = New(framework.Handle{}, &Arguments{BindingTimeout: metav1.Duration{Duration: timeout}})

func anywhere(claim *resourcev1.ResourceClaim) { claim.Status.Allocation.NodeSelector = nil }

// share replaces the device of the claim with a share of it.
func share(of, said string) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		claim.Status.Allocation.Devices.Results[0].ShareID = new(types.UID(of))
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

// assessCase is the decision about one claim.
type assessCase struct {
	reason string
	pod    *corev1.Pod
	ref    reference
	// began is the time since the start of the wait.
	began time.Duration
	claim []claimOption
	// take means that PreBind reserves the claim.
	take bool
	// waits is a part of the wait, and refuse one of the error.
	waits, refuse string
}

func (tc assessCase) check(t *testing.T) {
	if tc.pod == nil {
		tc.pod = thePod()
	}
	bc := &framework.BindContext{Pod: tc.pod, Node: gen.Node("node-a"), Attempt: "here-1", Since: now.Add(-tc.began), Now: now}
	claim := claimed.Trim(theClaim("c", tc.claim...))
	take, wait, err := deciding.assess(bc, tc.ref, claim)
	if tc.refuse != "" {
		require.True(t, frameworktest.IsKind(err, framework.KindRefuse), "%s: %v", tc.reason, err)
		assert.ErrorContains(t, err, tc.refuse, tc.reason)
		return
	}
	require.NoError(t, err, tc.reason)
	assert.Equal(t, tc.take, take, tc.reason)
	if tc.waits == "" {
		assert.Empty(t, wait, tc.reason)
		return
	}
	assert.Equal(t, claimObject("default", "c"), wait.Object)
	assert.Contains(t, wait.For, tc.waits, tc.reason)
	assert.True(t, wait.Until.After(now), "the wait has a limit")
}

func TestAssess(t *testing.T) {
	cases := map[string]assessCase{
		"Unreserved":  {reason: "upstream claim-reference, good-topology: the claim is not reserved", claim: []claimOption{allocated("node-a", "gpu-0")}, take: true},
		"Reserved":    {reason: "upstream reserved-okay, bound-claim-without-binding-conditions: the claim is reserved", claim: []claimOption{allocated("node-a", "gpu-0"), reservedTo("web")}},
		"Deleted":     {reason: "upstream deleted-claim: the claim is being deleted", claim: []claimOption{allocated("node-a", "gpu-0"), reservedTo("web"), meta1(gen.Terminating())}, refuse: "being deleted"},
		"Anywhere":    {reason: "an allocation without a selector is for every node", claim: []claimOption{allocated("node-b", "gpu-0"), anywhere}, take: true},
		"BadSelector": {reason: "Prebind cannot evaluate the node selector", claim: []claimOption{allocated("node-a"), badSelector}, refuse: "invalid node selector"},
		"Full":        {reason: "upstream reserved-for max: the claim has the maximum number of reservations", claim: []claimOption{allocated("node-a", "gpu-0"), full}, refuse: "256 pods"},
		"FullWithUs":  {reason: "the pod has one of the reservations", claim: []claimOption{allocated("node-a", "gpu-0"), full, reservedTo("web")}},
		"Own":         {reason: "upstream claim-template: the pod owns the claim", ref: reference{generated: true}, claim: []claimOption{made("web"), allocated("node-a", "gpu-0")}, take: true},
		"WrongOwner":  {reason: "upstream wrong-claim: another pod owns the claim", ref: reference{generated: true}, claim: []claimOption{made("db"), allocated("node-a", "gpu-0"), reservedTo("web")}, refuse: "not created for this pod"},
		"Group": {
			reason: "upstream reserved-okay-podgroup: the scheduler has reserved the claim for the PodGroup", pod: thePod(grouped), ref: reference{generated: true},
			claim: []claimOption{ofGroup("team"), allocated("node-a", "gpu-0"), reservedToGroup("team")},
		},
		"OtherGroup": {reason: "another PodGroup owns the claim", pod: thePod(grouped), ref: reference{generated: true}, claim: []claimOption{ofGroup("others"), allocated("node-a", "gpu-0"), reservedToGroup("others")}, refuse: "not created for this pod"},
		"GroupUnreserved": {
			reason: "only a scheduler reserves claims for PodGroups", pod: thePod(grouped), ref: reference{generated: true},
			claim: []claimOption{ofGroup("team"), allocated("node-a", "gpu-0")}, refuse: "belongs to a PodGroup and is not reserved: only a scheduler that supports PodGroups can reserve it",
		},
		"Extended":           {reason: "kube-scheduler has created and reserved the claim", ref: reference{generated: true, extended: true}, claim: []claimOption{made("web"), allocated("node-a", "gpu-0"), reservedTo("web")}},
		"ExtendedUnreserved": {reason: "only kube-scheduler reserves claims for extended resources", ref: reference{generated: true, extended: true}, claim: []claimOption{made("web"), allocated("node-a", "gpu-0")}, refuse: "extended resources"},
	}
	for name, tc := range cases {
		t.Run(name, tc.check)
	}
}

func badSelector(claim *resourcev1.ResourceClaim) {
	claim.Status.Allocation.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Operator = "?"
}

// waiting is a claim of the pod whose device has binding conditions.
func waiting(more ...claimOption) []claimOption {
	return append([]claimOption{allocated("node-a", "gpu-0"), needs(both, []string{"broken"}), reservedTo("web")}, more...)
}

func TestConditions(t *testing.T) {
	type statuses = map[string]metav1.ConditionStatus
	two := []claimOption{allocated("node-a", "gpu-0", "gpu-1"), needs(both, []string{"broken"}), reservedTo("web")}
	cases := map[string]assessCase{
		"Succeeded":     {reason: "upstream bound-claim-with-succeeded-binding-conditions: all conditions are true", claim: waiting(says("gpu-0", yes))},
		"SucceededLate": {reason: "true conditions count even after the timeout", began: time.Hour, claim: waiting(says("gpu-0", yes))},
		"Half": {
			reason: "all binding conditions must be true", waits: "programmed",
			claim: waiting(says("gpu-0", statuses{"attached": "True", "programmed": "Unknown"})),
		},
		"FailedAndTrue": {
			reason: "a failure takes precedence over true binding conditions", refuse: "failed",
			claim: waiting(says("gpu-0", statuses{"attached": "True", "programmed": "True", "broken": "True"})),
		},
		"NotFailed": {
			reason: "a failure condition that is false is not a failure",
			claim:  waiting(says("gpu-0", statuses{"attached": "True", "programmed": "True", "broken": "False"})),
		},
		"NoFailureWithoutCondition": {
			reason: "like upstream, failures of a device without binding conditions do not count",
			claim:  waiting(needs(nil, []string{"broken"}), says("gpu-0", statuses{"broken": "True"})),
		},
		"TimedOut": {
			reason: "upstream bound-claim-with-timed-out-binding, from the first call: the clock of the scheduler does not count", refuse: "timed out after 10m0s", began: timeout,
			claim: waiting(says("gpu-0", statuses{"attached": "True", "programmed": "False"})),
		},
		"InTime":       {reason: "upstream prebind-fail-with-binding-timeout: the timeout has not passed", began: timeout - 1, claim: waiting(), waits: "attached"},
		"SecondDevice": {reason: "the conditions of every device must be true", claim: append(two, says("gpu-0", yes)), waits: "gpu-1"},
		"SecondDeviceFailed": {
			reason: "a failure is final even if the driver has not reported on another device", refuse: "gpu-1",
			claim: append(two, says("gpu-1", statuses{"broken": "True"})),
		},
		"OtherDevice": {reason: "the report is about another device", waits: "attached", claim: waiting(says("gpu-9", yes))},
		"Share":       {reason: "consumable capacity: the report is about the share", claim: waiting(says("gpu-0", yes), share("s1", "s1"))},
		"OtherShare":  {reason: "the report is about another share of the device", waits: "attached", claim: waiting(says("gpu-0", yes), share("s1", "s2"))},
		"NoShareSaid": {reason: "the report is about the device, not about the share", waits: "attached", claim: waiting(says("gpu-0", yes), share("s1", ""))},
	}
	for name, tc := range cases {
		t.Run(name, tc.check)
	}
}

func decideOn(bc *framework.BindContext, all claims) (readiness, error) {
	refs, err := references(bc.Pod)
	if err != nil {
		return readiness{}, err
	}
	return deciding.decide(bc, refs, all)
}

func TestDecide(t *testing.T) {
	bc := &framework.BindContext{Pod: thePod(uses("a", "b")), Node: gen.Node("node-a"), Attempt: "here-1", Since: now, Now: now}
	mine := theClaim("a", allocated("node-a", "gpu-1"))
	_, err := decideOn(bc, claims{"a": mine, "b": nil})
	require.True(t, frameworktest.IsKind(err, framework.KindRefuse), "%v", err)
	require.ErrorContains(t, err, "ResourceClaim default/b: does not exist; create it")
	_, err = decideOn(&framework.BindContext{Pod: thePod(extended("web-ext")), Node: bc.Node}, claims{"web-ext": nil})
	require.ErrorContains(t, err, "ResourceClaim default/web-ext: does not exist; recreate the pod", "kube-scheduler has deleted its claim after a failed bind")
	_, err = decideOn(bc, claims{"a": mine, "b": theClaim("b")})
	require.ErrorContains(t, err, "ResourceClaim default/b: not allocated", "one claim that is not allocated rejects the bind")
	borrowed := theClaim("b", allocated("node-a", "gpu-0"), reservedTo("web"), meta1(gen.Annotation(markKey("pod-web", "there-1"), mark{Pod: "web", Node: "node-a"}.encode())))
	r, err := decideOn(bc, claims{"a": mine, "b": borrowed})
	require.NoError(t, err)
	assert.Len(t, r.toTake, 2, "the reservation of b belongs to another attempt")
	assert.Empty(t, r.wait)
	gen.Annotation(markKey("pod-web", "here-1"), "{}")(&borrowed.ObjectMeta)
	r, err = decideOn(bc, claims{"a": mine, "b": borrowed})
	require.NoError(t, err)
	assert.Equal(t, []reference{{of: "of-a", claim: "a"}}, r.toTake, "this attempt marks the claim too")
}

func TestDecide_Waits(t *testing.T) {
	all := claims{
		"a": theClaim("a", allocated("node-a", "gpu-0")), "d": theClaim("d", waiting()...),
	}
	bc := &framework.BindContext{Pod: thePod(uses("a", "d")), Node: gen.Node("node-a"), Attempt: "here-1", Since: now, Now: now}
	r, err := decideOn(bc, all)
	require.NoError(t, err)
	assert.Len(t, r.toTake, 1)
	assert.Equal(t, claimObject("default", "d"), r.wait.Object)
	assert.Equal(t, now.Add(timeout), r.wait.Until)

	bc.Pod = thePod(uses("a", "d"), template(""))
	r, err = decideOn(bc, all)
	require.NoError(t, err)
	assert.Empty(t, r.toTake, "nothing is reserved for a pod that may wait long")
	assert.Equal(t, framework.ObjectOf(bc.Pod), r.wait.Object)
	assert.Contains(t, r.wait.For, `"gpu"`)
	assert.Equal(t, now.Add(timeout), r.wait.Until)
}

func TestReferences(t *testing.T) {
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		want   []reference
		refuse bool
	}{
		"Named": {reason: "upstream claim-reference: the pod need not own the claim", pod: thePod(uses("a", "b")), want: []reference{{of: "of-a", claim: "a"}, {of: "of-b", claim: "b"}}},
		"Template": {
			reason: "upstream claim-template: the pod must own the claim", pod: thePod(template("web-gpu-x")),
			want: []reference{{of: "gpu", claim: "web-gpu-x", generated: true}},
		},
		"NoneNeeded": {
			reason: "a template can require no claim",
			pod: thePod(template(""), func(pod *corev1.Pod) {
				pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
			}),
		},
		"Repeated": {
			reason: "a pod can refer to a claim more than once", pod: thePod(uses("a", "b", "a"), template(""), template("")),
			want: []reference{{of: "of-a", claim: "a"}, {of: "of-b", claim: "b"}, {of: "gpu", generated: true}},
		},
		"RepeatedByTemplate": {
			reason: "a name that the pod also gives must not remove the check of the owner", pod: thePod(uses("a"), template("a"), extended("a")),
			want: []reference{
				{of: "of-a", claim: "a"}, {of: "gpu", claim: "a", generated: true},
				{of: "extended resources", claim: "a", generated: true, extended: true},
			},
		},
		"Maximum": {
			reason: "a pod can have 128 entries", pod: thePod(uses(slices.Repeat([]string{"a"}, 128)...)), want: []reference{{of: "of-a", claim: "a"}},
		},
		"TooMany": {
			reason: "a tenant can write any number of entries, and each costs requests", refuse: true, pod: thePod(uses(slices.Repeat([]string{"a"}, 129)...)),
		},
		"Unknown": {
			reason: "a later Kubernetes version can add kinds of references", refuse: true,
			pod: thePod(func(pod *corev1.Pod) { pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "new"}} }),
		},
		"Extended": {
			reason: "kube-scheduler's claim for extended resources comes last", pod: thePod(uses("a"), extended("web-ext")),
			want: []reference{{of: "of-a", claim: "a"}, {of: "extended resources", claim: "web-ext", generated: true, extended: true}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			refs, err := references(tc.pod)
			if tc.refuse {
				require.True(t, frameworktest.IsKind(err, framework.KindRefuse), "%s: %v", tc.reason, err)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, refs, tc.reason)
		})
	}
}
