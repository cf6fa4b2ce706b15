// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bindpolicy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/prebind/prebind/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// AdmissionPath is the path of the webhook that validates BindPolicies.
const AdmissionPath = "/validate-bindpolicy"

// The codes of rejections, as in the API server.
const (
	badRequest = 400
	invalid    = 422
)

// NewAdmission returns the webhook that rejects BindPolicies that do not compile. It needs no cache and no running plugin.
func NewAdmission(c *Compiler) *admission.Webhook {
	return &admission.Webhook{Handler: admission.HandlerFunc(func(ctx context.Context, r admission.Request) admission.Response {
		return validate(ctx, c, r)
	})}
}

// validate compiles the policy of the request. An update that does not change the spec passes, so that a policy that entered without
// this webhook can get labels and lose finalizers.
func validate(ctx context.Context, c *Compiler, r admission.Request) admission.Response {
	var b, old v1alpha1.BindPolicy
	if err := json.Unmarshal(r.Object.Raw, &b); err != nil {
		return admission.Errored(badRequest, fmt.Errorf("decoding the BindPolicy: %w", err))
	}
	if r.Operation == admissionv1.Update && json.Unmarshal(r.OldObject.Raw, &old) == nil && equality.Semantic.DeepEqual(b.Spec, old.Spec) {
		return admission.Allowed("")
	}
	compiled, err := c.compile(ctx, &b, true)
	if err != nil {
		return denied(err)
	}
	response := admission.Allowed("")
	for _, w := range compiled.Warnings() {
		response.Warnings = append(response.Warnings, w.FieldRef+": "+w.Warning)
	}
	return response
}

// denied returns the response for a policy that does not compile, with a cause for each problem.
func denied(err error) admission.Response {
	status := &metav1.Status{
		Status: metav1.StatusFailure, Code: invalid, Reason: metav1.StatusReasonInvalid,
		Message: strings.ReplaceAll(err.Error(), "\n", "; "),
		Details: &metav1.StatusDetails{Group: v1alpha1.Kind.Group, Kind: v1alpha1.Kind.Kind},
	}
	for _, p := range policy.Problems(err) {
		status.Details.Causes = append(status.Details.Causes, metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: p.Field, Message: p.Message})
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{Result: status}}
}
