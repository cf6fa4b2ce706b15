// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/text"
)

// bind is a decoded Binding.
type bind struct {
	request binder.Request
	// has reports which parents of patched fields exist in the object of the API server.
	has presence
}

// presence is the set of parents of patched fields that exist.
type presence struct{ metadata, annotations, labels bool }

// parse returns the Binding of a request. For a request that is not the creation of a Binding, it returns a nil bind and
// the reason. A Binding that cannot be decoded is an error.
func parse(r *admissionv1.AdmissionRequest) (*bind, string, *framework.Error) {
	reason := notBinding(r)
	if reason != "" {
		return nil, reason, nil
	}
	// Binding is corev1.Binding, except that it shows whether there are metadata.
	type Binding struct {
		metav1.TypeMeta
		Metadata *metav1.ObjectMeta     `json:"metadata"`
		Target   corev1.ObjectReference `json:"target"`
	}
	var object Binding
	if err := json.Unmarshal(r.Object.Raw, &object); err != nil {
		return nil, "", &framework.Error{
			Kind:    framework.KindInvalid,
			Object:  framework.Object{Kind: "Binding", Namespace: r.Namespace, Name: r.Name},
			Message: fmt.Sprintf("the object of the AdmissionReview is not valid: %v", err),
			Advice:  "post a v1 Binding",
		}
	}
	binding := &corev1.Binding{TypeMeta: object.TypeMeta, ObjectMeta: ptr.Deref(object.Metadata, metav1.ObjectMeta{}), Target: object.Target}
	has := presence{metadata: object.Metadata != nil, annotations: binding.Annotations != nil, labels: binding.Labels != nil}
	// An attempt keeps the Binding. Prebind does not read these fields, and a client controls their size.
	binding.ManagedFields, binding.OwnerReferences, binding.Finalizers = nil, nil, nil
	// Release the object, because Prebind may hold the call.
	r.Object.Raw = nil
	// On the legacy path, POST .../bindings, only the object contains the name.
	name := r.Name
	if name == "" {
		name = binding.Name
	}
	return &bind{has: has, request: binder.Request{
		Pod: types.NamespacedName{Namespace: r.Namespace, Name: name}, Binding: binding, User: r.UserInfo, DryRun: ptr.Deref(r.DryRun, false),
	}}, "", nil
}

// notBinding returns why a request is not the creation of a Binding, or "". Such requests come from a webhook
// configuration with rules that differ from the shipped ones. A denial would block every request that those rules match.
func notBinding(r *admissionv1.AdmissionRequest) string {
	what := r.Resource.Resource
	if r.SubResource != "" {
		what += "/" + r.SubResource
	}
	clip := func(s string) string { return text.Clip(s, maxCause) }
	if r.Resource.Group != "" || (what != "pods/binding" && what != "bindings") || r.Operation != admissionv1.Create {
		return fmt.Sprintf("allowed %s of %q without a check: the rules of the webhook configuration must match only CREATE of pods/binding and bindings", clip(string(r.Operation)), clip(what))
	}
	if kind := r.Kind; kind.Group != "" || kind.Version != "v1" || kind.Kind != "Binding" {
		return fmt.Sprintf("allowed a %s of %q without a check: Prebind supports Bindings of v1", clip(kind.Kind), clip(metav1.GroupVersion{Group: kind.Group, Version: kind.Version}.String()))
	}
	return ""
}
