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
)

// bind is a Binding on its way through the engine.
type bind struct {
	request binder.Request
	// has tells the patch which maps the API server's object has.
	has presence
}

// presence tells which parents of a patched field exist.
type presence struct{ metadata, annotations, labels bool }

// presenceIn tells of an object by what was decoded of it, and looks at the object
// again only where that is not enough: where it has nothing in its metadata.
func presenceIn(raw []byte, b *corev1.Binding) (presence, error) {
	has := presence{annotations: b.Annotations != nil, labels: b.Labels != nil}
	if has.metadata = has.annotations || has.labels || b.Name != "" || b.Namespace != "" || b.UID != ""; has.metadata {
		return has, nil
	}
	var object struct {
		Metadata *struct{} `json:"metadata"`
	}
	err := json.Unmarshal(raw, &object)
	has.metadata = object.Metadata != nil
	return has, err
}

// parse takes the Binding out of a review's request. It returns no bind, but the
// reason, for a request that is none of Prebind's business. An object that calls
// itself a Binding and cannot be read is an error.
func parse(r *admissionv1.AdmissionRequest) (*bind, string, *framework.Error) {
	reason := notBinding(r)
	if reason != "" {
		return nil, reason, nil
	}
	b := &bind{request: binder.Request{User: r.UserInfo, DryRun: ptr.Deref(r.DryRun, false)}}
	binding := &corev1.Binding{}
	err := json.Unmarshal(r.Object.Raw, binding)
	if err == nil {
		b.has, err = presenceIn(r.Object.Raw, binding)
	}
	if err != nil {
		return nil, "", &framework.Error{
			Kind:    framework.KindInvalid,
			Object:  framework.Object{Kind: "Binding", Namespace: r.Namespace, Name: r.Name},
			Message: fmt.Sprintf("the object of the review cannot be read: %v", err),
			Advice:  "post a v1 Binding",
		}
	}
	// An attempt keeps the Binding. Nobody reads these, and a client can fill them.
	binding.ManagedFields, binding.OwnerReferences, binding.Finalizers = nil, nil, nil
	// The bytes are not needed anymore, and the call may be held for long.
	r.Object.Raw = nil
	b.request.Binding = binding
	// On the legacy path the pod's name stands in the object only.
	name := r.Name
	if name == "" {
		name = binding.Name
	}
	b.request.Pod = types.NamespacedName{Namespace: r.Namespace, Name: name}
	return b, "", nil
}

// notBinding says why a request is not the creation of a Binding. It can only
// come from a webhook configuration with other rules than those shipped; to
// refuse it would stop whatever those rules match.
func notBinding(r *admissionv1.AdmissionRequest) string {
	what := r.Resource.Resource
	if r.SubResource != "" {
		what += "/" + r.SubResource
	}
	clip := func(text string) string { return line(text, maxCause) }
	if r.Resource.Group != "" || (what != "pods/binding" && what != "bindings") || r.Operation != admissionv1.Create {
		return fmt.Sprintf("the webhook configuration sends it %s of %q, which it lets pass: its rules must be CREATE of pods/binding and bindings", clip(string(r.Operation)), clip(what))
	}
	if kind := r.Kind; kind.Group != "" || kind.Version != "v1" || kind.Kind != "Binding" {
		return fmt.Sprintf("the object is a %s of %q, which it lets pass: it reads v1 Bindings", clip(kind.Kind), clip(metav1.GroupVersion{Group: kind.Group, Version: kind.Version}.String()))
	}
	return ""
}
