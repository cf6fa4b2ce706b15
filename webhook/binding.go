// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"fmt"

	"github.com/go-json-experiment/json"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
)

// notBinding is the warning of a request that is not the creation of a Binding. Such requests come from a webhook configuration
// with rules that differ from the shipped ones. A denial would block every request that those rules match.
const notBinding = "allowed without a check, because this is not the creation of a v1 Binding: the rules of the webhook configuration must match only CREATE of pods/binding and bindings"

// binding is the part of a Binding that Prebind reads. See review for the reason.
type binding struct {
	Metadata struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		UID             types.UID         `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Target corev1.ObjectReference `json:"target"`
}

// parse returns the Binding of a request, and releases the request except for its UID, because Prebind may hold the call. A Binding that cannot be
// decoded is an error.
func parse(r *request) (binder.Request, *framework.Error) {
	var b binding
	if err := json.Unmarshal(r.Object, &b, lenient); err != nil {
		return binder.Request{}, &framework.Error{
			Kind:    framework.KindInvalid,
			Object:  framework.Object{Kind: "Binding", Namespace: r.Namespace, Name: r.Name},
			Message: fmt.Sprintf("the object of the AdmissionReview is not valid: %v", decoding(err)),
			Advice:  "post a v1 Binding",
		}
	}
	m := b.Metadata
	parsed := binder.Request{
		// On the legacy path, POST .../bindings, only the object contains the name.
		Pod: types.NamespacedName{Namespace: r.Namespace, Name: cmp.Or(r.Name, m.Name)}, User: r.UserInfo, DryRun: r.DryRun,
		Binding: &corev1.Binding{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"}, ObjectMeta: metav1.ObjectMeta{
			Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Annotations: m.Annotations, Labels: m.Labels,
		}, Target: b.Target},
	}
	*r = request{UID: r.UID}
	return parsed, nil
}
