// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/claimed"
)

// reference is a claim of the pod.
type reference struct {
	// of is the name of the claim in the pod.
	of string
	// claim is the name of the ResourceClaim. It is empty until the claim of a template
	// exists.
	claim string
	// generated requires that the claim belongs to the pod or to its PodGroup.
	generated bool
	// extended marks the claim that kube-scheduler creates for extended resources.
	extended bool
}

// references returns the claims of the pod in order. It follows resourceclaim.Name. A pod can refer to a claim more than
// once. Of the references for which the same rules apply, references returns the first. The error rejects the bind.
func references(pod *corev1.Pod) ([]reference, error) {
	if n := len(pod.Spec.ResourceClaims); n > claimed.MaxClaims {
		return nil, framework.Refuse(framework.ObjectOf(pod), "spec.resourceClaims has %d entries, and the maximum is %d", n, claimed.MaxClaims).
			Advise("use fewer claims")
	}
	var refs []reference
	known := sets.New[reference]()
	add := func(r reference) {
		rules := r
		rules.of = ""
		if !known.Has(rules) {
			known.Insert(rules)
			refs = append(refs, r)
		}
	}
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, generated, err := resourceclaim.Name(pod, ref)
		switch {
		case errors.Is(err, resourceclaim.ErrClaimNotFound):
			add(reference{of: ref.Name, generated: true})
		case err != nil:
			return nil, framework.Refuse(framework.ObjectOf(pod), "spec.resourceClaims %q refers to neither a ResourceClaim nor a ResourceClaimTemplate", ref.Name).
				Because(err).Advise("change the pod, or upgrade Prebind")
		case name == nil:
			// The template needs no claim.
		default:
			add(reference{of: ref.Name, claim: *name, generated: generated})
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		add(reference{of: "extended resources", claim: status.ResourceClaimName, generated: true, extended: true})
	}
	return refs, nil
}

// madeFor returns an error if a claim of a template belongs neither to the pod nor to its
// PodGroup.
func madeFor(pod *corev1.Pod, claim *resourcev1.ResourceClaim) error {
	// A pod with a scheduling group need not have a PodGroup.
	grouped := pod.Spec.SchedulingGroup != nil && pod.Spec.SchedulingGroup.PodGroupName != nil
	return resourceclaim.IsForPod(pod, claim, grouped)
}

// ofPodGroup reports whether the claim was created for the PodGroup of the pod.
func (r reference) ofPodGroup(pod *corev1.Pod, claim *resourcev1.ResourceClaim) bool {
	return r.generated && resourceclaim.IsForPod(pod, claim, false) != nil
}

func claimObject(namespace, name string) framework.Object {
	return framework.Object{Kind: "ResourceClaim", Namespace: namespace, Name: name}
}

// missing describes a claim of a template that does not exist yet.
func (r reference) missing() string {
	return fmt.Sprintf("kube-controller-manager to create the claim %q from its template", r.of)
}
