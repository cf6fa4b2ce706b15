// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// PolicyPath is the path of the webhook that validates BindPolicies.
const PolicyPath = "/validate-bindpolicy"

// PolicyCompiler compiles BindPolicies.
type PolicyCompiler interface {
	// Compile returns the compiled policy, or an error for policy.Problems.
	Compile(ctx context.Context, b *v1alpha1.BindPolicy) (*policy.Compiled, error)
}

// NewPolicyHandler returns the webhook that rejects BindPolicies that do not compile. It needs no cache and no running plugin.
func NewPolicyHandler(c PolicyCompiler) http.Handler {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	validator, busy := admission.WithValidator[*v1alpha1.BindPolicy](scheme, policyValidator{c}), make(chan struct{}, maxPolicies)
	validator.LogConstructor = discard
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, problem := readBody(r)
		if problem != nil {
			writeJSON(w, problem)
			return
		}
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
			r.Body = io.NopCloser(bytes.NewReader(body))
			validator.ServeHTTP(w, r)
		default: // A call that waits would keep its connection from the API server. The API server repeats the call.
			writeJSON(w, unavailable(errors.New("other BindPolicies are being compiled")))
		}
	})
}

// maxPolicies is the number of policies that the webhook decodes at the same time: a forged one can be large.
const maxPolicies = 2

type policyValidator struct{ PolicyCompiler }

// ValidateCreate implements admission.Validator.
func (v policyValidator) ValidateCreate(ctx context.Context, b *v1alpha1.BindPolicy) (admission.Warnings, error) {
	compiled, err := v.Compile(ctx, b)
	if err != nil {
		return nil, invalidPolicy(b.Name, err)
	}
	var warnings admission.Warnings
	for _, w := range compiled.Warnings() {
		warnings = append(warnings, w.FieldRef+": "+w.Warning)
	}
	return warnings, nil
}

// ValidateUpdate implements admission.Validator. An update that changes nothing of the spec, or only sets the mode Audit, passes: a policy
// that entered without this webhook, or that an earlier version could compile, can lose its finalizers, and be stopped.
func (v policyValidator) ValidateUpdate(ctx context.Context, old, b *v1alpha1.BindPolicy) (admission.Warnings, error) {
	unchanged := old.Spec
	if b.Spec.Mode == v1alpha1.ModeAudit {
		unchanged.Mode = b.Spec.Mode
	}
	if equality.Semantic.DeepEqual(b.Spec, unchanged) {
		return nil, nil
	}
	return v.ValidateCreate(ctx, b)
}

// ValidateDelete implements admission.Validator.
func (policyValidator) ValidateDelete(context.Context, *v1alpha1.BindPolicy) (admission.Warnings, error) {
	return nil, nil
}

// invalidPolicy returns the answer for a policy that does not compile, with a cause for each problem.
func invalidPolicy(name string, err error) error {
	var all field.ErrorList
	for _, p := range policy.Problems(err) {
		all = append(all, &field.Error{Type: field.ErrorTypeInvalid, Field: cmp.Or(p.Field, "spec"), BadValue: field.OmitValueType{}, Detail: p.Message})
	}
	return apierrors.NewInvalid(v1alpha1.Kind.GroupKind(), name, all)
}
