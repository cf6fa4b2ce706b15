// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

func TestProblems(t *testing.T) {
	s := named{framework.Selection{Example: &storagev1.CSINode{}}, "spec.resources[csinode]"}
	cases := map[string]struct {
		reason string
		got    *problem
		want   problem
	}{
		"Compile": {
			reason: "the compiler gives the reason",
			got:    problemOf(errors.Join(&policy.Problem{Reason: v1alpha1.ReasonKeyNotAllowed, Field: "spec.mutations.labels[0].key", Message: "not allowed"}, errors.New("two"))),
			want:   problem{reason: v1alpha1.ReasonKeyNotAllowed, message: "spec.mutations.labels[0].key: not allowed; two"},
		},
		"Panic": {
			reason: "an error without a reason is an error of the compiler", got: problemOf(errors.New("the compiler panicked")),
			want: problem{reason: v1alpha1.ReasonCompileError, message: "the compiler panicked"},
		},
		"Forbidden": {
			reason: "the message contains the missing rule",
			got:    watchProblem(s, fmt.Errorf("selection: %w", &framework.PermissionError{Missing: "get, list, watch csinodes.storage.k8s.io"})),
			want: problem{reason: v1alpha1.ReasonForbidden, passing: true, message: "spec.resources[csinode]: the service account of Prebind lacks permissions: get, list, watch csinodes.storage.k8s.io; " +
				`apply a ClusterRole with the label rbac.prebind.dev/aggregate-to-policy: "true" and the rule {apiGroups: ["storage.k8s.io"], resources: [csinodes], verbs: [get, list, watch]}`},
		},
		"UnknownKind": {
			reason: "the kind can be installed later",
			got:    watchProblem(s, &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Rack"}, SearchedVersions: []string{"v1"}}),
			want: problem{reason: v1alpha1.ReasonUnknownKind, passing: true, message: "spec.resources[csinode]: the API server does not serve the kind: " +
				`no matches for kind "Rack" in version "example.com/v1"; install it, or correct apiVersion and kind`},
		},
		"Watch": {
			reason: "the API server may be slow", got: watchProblem(s, context.DeadlineExceeded),
			want: problem{reason: v1alpha1.ReasonWatchFailed, passing: true, message: "spec.resources[csinode]: the watch of CSINode objects did not begin: context deadline exceeded; Prebind tries again"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, *tc.got, tc.reason) })
	}
}

func TestRuleFor(t *testing.T) {
	assert.Equal(t, ` and the rule {apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}`, ruleFor("get, list, watch secrets"))
	assert.Equal(t, ` and the rule {apiGroups: ["example.com"], resources: [racks], verbs: [watch]}`, ruleFor("watch racks.example.com"))
	assert.Equal(t, ` and the rule {apiGroups: ["example.com"], resources: [racks], verbs: [watch]}`, ruleFor("watch racks.example.com in prod"))
	assert.Empty(t, ruleFor("get a; list b"))
	assert.Empty(t, ruleFor("everything"))
}
