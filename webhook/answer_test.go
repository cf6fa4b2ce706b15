// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/prebind/prebind/binder/framework"
)

// TestDeny_Repeats checks which clients repeat a request after a denial.
func TestDeny_Repeats(t *testing.T) {
	cases := map[framework.Kind]struct {
		reason string
		// client is set if client-go repeats, and scheduler if kube-scheduler v1.37 or newer repeats
		// (kubernetes/kubernetes#138855), or a client that also repeats conflicts.
		client, scheduler bool
	}{
		framework.KindWait:     {reason: "the same Binding can succeed later", client: true},
		framework.KindRefuse:   {reason: "the scheduler must choose another node"},
		framework.KindStale:    {reason: "the scheduler must read the pod again"},
		framework.KindInvalid:  {reason: "the same Binding never succeeds"},
		framework.KindInternal: {reason: "the failure may be temporary, and kube-scheduler limits its retries", scheduler: true},
	}
	assert.Len(t, cases, len(codes), "every kind has a test case")
	for kind, tc := range cases {
		t.Run(string(kind), func(t *testing.T) {
			err := &apierrors.StatusError{ErrStatus: *deny(&framework.Error{Kind: kind}, 0).Result}
			assert.Equal(t, tc.client, apierrors.IsTooManyRequests(err), tc.reason)
			assert.Equal(t, tc.scheduler, apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err), tc.reason)
			assert.False(t, apierrors.IsNotFound(err))
		})
	}
}

// TestDeny_Bounded checks that the size of a denial is limited for any error.
func TestDeny_Bounded(t *testing.T) {
	huge := strings.Repeat("<\n", 1<<20)
	err := &framework.Error{Kind: framework.KindInvalid, Plugin: huge, Object: framework.Object{Kind: huge, Namespace: huge, Name: huge}, Message: huge, Advice: huge}
	for range 1000 {
		err.Fields = append(err.Fields, framework.Field{Path: huge, Message: huge})
	}
	response := deny(err, 0)
	response.Warnings = warnings([]string{strings.Repeat("<", maxWarningRunes-len("prebind: ")), huge})
	assert.Len(t, response.Warnings, 1)
	encoded, failed := json.Marshal(&admissionv1.AdmissionReview{Response: &response.AdmissionResponse})
	require.NoError(t, failed)
	assert.Less(t, len(encoded), 128<<10)
}
