// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

func TestReferences(t *testing.T) {
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		want   []reference
		refuse bool
	}{
		"None":  {reason: "upstream empty: the pod has no claims", pod: thePod("web")},
		"Named": {reason: "upstream claim-reference: the pod need not own the claim", pod: thePod("web", uses("a", "b")), want: []reference{{of: "of-a", claim: "a"}, {of: "of-b", claim: "b"}}},
		"Template": {
			reason: "upstream claim-template: the pod must own the claim", pod: thePod("web", template("web-gpu-x")),
			want: []reference{{of: "gpu", claim: "web-gpu-x", generated: true}},
		},
		"NotMadeYet": {reason: "upstream missing-claim: the claim will be created", pod: thePod("web", template("")), want: []reference{{of: "gpu", generated: true}}},
		"NoneNeeded": {
			reason: "a template can require no claim",
			pod: thePod("web", template(""), func(pod *corev1.Pod) {
				pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
			}),
		},
		"Unknown": {
			reason: "a later Kubernetes version can add kinds of references", refuse: true,
			pod: thePod("web", func(pod *corev1.Pod) { pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "new"}} }),
		},
		"Extended": {
			reason: "kube-scheduler's claim for extended resources comes last", pod: thePod("web", uses("a"), extended("web-ext")),
			want: []reference{{of: "of-a", claim: "a"}, {of: "extended resources", claim: "web-ext", generated: true, extended: true}},
		},
		"ExtendedOnly": {
			reason: "the pod refers to no other claim", pod: thePod("web", extended("web-ext")),
			want: []reference{{of: "extended resources", claim: "web-ext", generated: true, extended: true}},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			refs, err := references(tc.pod)
			if tc.refuse {
				require.True(t, framework.IsKind(err, framework.KindRefuse), "%s: %v", tc.reason, err)
				return
			}
			require.NoError(t, err, tc.reason)
			assert.Equal(t, tc.want, refs, tc.reason)
		})
	}
}

func TestMadeFor(t *testing.T) {
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		owner  claimOption
		ok     bool
		group  bool
	}{
		"Own":        {reason: "the pod owns the claim", pod: thePod("web"), owner: made("web"), ok: true},
		"OtherPod":   {reason: "upstream wrong-claim: another pod owns the claim, and the pod has no PodGroup", pod: thePod("web"), owner: made("db"), group: true},
		"NoOwner":    {reason: "a user created the claim", pod: thePod("web"), owner: func(*resourcev1.ResourceClaim) {}, group: true},
		"OwnInGroup": {reason: "a pod of a PodGroup can own claims", pod: thePod("web", grouped), owner: made("web"), ok: true},
		"Group":      {reason: "the PodGroup of the pod owns the claim", pod: thePod("web", grouped), owner: ofGroup("team"), ok: true, group: true},
		"OtherGroup": {reason: "another PodGroup owns the claim", pod: thePod("web", grouped), owner: ofGroup("others"), group: true},
		"GroupNoPod": {reason: "the pod has no PodGroup", pod: thePod("web"), owner: ofGroup("team"), group: true},
		"Namespace":  {reason: "the claim is in another namespace", pod: thePod("web"), owner: func(c *resourcev1.ResourceClaim) { made("web")(c); meta1(gen.InNamespace("x"))(c) }, group: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim := theClaim("c", tc.owner)
			err := madeFor(tc.pod, claim)
			assert.Equal(t, tc.ok, err == nil, "%s: %v", tc.reason, err)
			assert.Equal(t, tc.group, reference{generated: true}.ofPodGroup(tc.pod, claim), tc.reason)
			assert.False(t, reference{}.ofPodGroup(tc.pod, claim), "a claim that the pod names directly does not need an owner")
		})
	}
}
