// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/prebind/prebind/policy/v1alpha1"
)

// errForbidden is the answer to a watch without a role.
var errForbidden = apierrors.NewForbidden(schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}, "", errors.New("no role"))

func TestWatchProblem(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, want, text string
		err                error
	}{
		"Forbidden": {
			reason: "the message contains the missing rule", err: fmt.Errorf("selection: %w", errForbidden), want: v1alpha1.ReasonForbidden,
			text: "selection: csinodes.storage.k8s.io is forbidden: no role; " +
				`apply a ClusterRole with the label rbac.prebind.dev/aggregate-to-policy: "true" and the rule {apiGroups: ["storage.k8s.io"], resources: [csinodes], verbs: [get, list, watch]}`,
		},
		"UnknownKind": {
			reason: "the kind can be installed later", want: v1alpha1.ReasonUnknownKind,
			err: &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "example.com", Kind: "Rack"}, SearchedVersions: []string{"v1"}},
			text: "the API server does not serve the kind: " +
				`no matches for kind "Rack" in version "example.com/v1"; install it, or correct apiVersion and kind`,
		},
		"Watch": {
			reason: "the API server may be slow", err: context.DeadlineExceeded, want: v1alpha1.ReasonWatchFailed,
			text: "the watch of CSINode objects did not begin: context deadline exceeded; Prebind tries again",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := watchProblem("CSINode", tc.err)
			assert.Equal(t, tc.want, got, tc.reason)
			require.EqualError(t, err, tc.text)
		})
	}
}

func TestRuleFor(t *testing.T) {
	assert.Empty(t, ruleFor(&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonForbidden}}))
}
