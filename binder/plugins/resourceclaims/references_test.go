// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/framework/frameworktest"
)

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
			reason: "a pod can refer to a claim any number of times", pod: thePod(uses("a", "b", "a"), template(""), template("")),
			want: []reference{{of: "of-a", claim: "a"}, {of: "of-b", claim: "b"}, {of: "gpu", generated: true}},
		},
		"RepeatedByTemplate": {
			reason: "a name that the pod also gives must not remove the check of the owner", pod: thePod(uses("a"), template("a"), extended("a")),
			want: []reference{
				{of: "of-a", claim: "a"}, {of: "gpu", claim: "a", generated: true},
				{of: "extended resources", claim: "a", generated: true, extended: true},
			},
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
