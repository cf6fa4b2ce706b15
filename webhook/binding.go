// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"fmt"

	"github.com/go-json-experiment/json"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

// notBinding is the warning of a request that is not the creation of a Binding. Such requests come from a webhook configuration
// with rules that differ from the shipped ones. A denial would block every request that those rules match.
const notBinding = "allowed without a check, because this is not the creation of a v1 Binding: the rules of the webhook configuration must match only CREATE of pods/binding and bindings"

// parse returns the Binding of a request, which it releases. A Binding that cannot be decoded is an error.
func parse(r *admissionv1.AdmissionRequest) (binder.Request, *framework.Error) {
	binding := &corev1.Binding{}
	if err := json.Unmarshal(r.Object.Raw, binding, lenient); err != nil {
		return binder.Request{}, &framework.Error{
			Kind:    framework.KindInvalid,
			Object:  framework.Object{Kind: "Binding", Namespace: r.Namespace, Name: r.Name},
			Message: fmt.Sprintf("the object of the AdmissionReview is not valid: %v", decoding(err)),
			Advice:  "post a v1 Binding",
		}
	}
	// An attempt keeps the Binding. Prebind does not read these fields, and a client controls their size.
	binding.ManagedFields, binding.OwnerReferences, binding.Finalizers = nil, nil, nil
	// Release the object, because Prebind may hold the call.
	r.Object.Raw = nil
	// On the legacy path, POST .../bindings, only the object contains the name.
	name := cmp.Or(r.Name, binding.Name)
	return binder.Request{
		Pod: types.NamespacedName{Namespace: r.Namespace, Name: name}, Binding: binding, User: r.UserInfo, DryRun: ptr.Deref(r.DryRun, false),
	}, nil
}
