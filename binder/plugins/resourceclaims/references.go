// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/prebind/prebind/binder/framework"
)

// reference is one claim that the pod needs.
type reference struct {
	// of is its name in the pod.
	of string
	// claim is the name of the ResourceClaim; empty while the claim of a template does not
	// exist.
	claim string
	// generated says that the claim has to belong to the pod or to its PodGroup.
	generated bool
	// extended says that kube-scheduler created the claim for an extended resource.
	extended bool
}

func hasClaims(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}

// references returns the claims that the pod needs, in order. It follows
// resourceclaim.Name.
func references(pod *corev1.Pod) ([]reference, error) {
	var refs []reference
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, generated, err := resourceclaim.Name(pod, ref)
		switch {
		case errors.Is(err, resourceclaim.ErrClaimNotFound):
			refs = append(refs, reference{of: ref.Name, generated: true})
		case err != nil:
			return nil, framework.Refuse(podObject(pod), "spec.resourceClaims %q refers to neither a ResourceClaim nor a ResourceClaimTemplate", ref.Name).
				Because(err).Advise("change the pod, or upgrade Prebind")
		case name == nil:
			// The template needs no claim.
		default:
			refs = append(refs, reference{of: ref.Name, claim: *name, generated: generated})
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		refs = append(refs, reference{of: "extended resources", claim: status.ResourceClaimName, generated: true, extended: true})
	}
	return refs, nil
}

// madeFor returns why a claim of a template belongs neither to the pod nor to its
// PodGroup, or nil.
func madeFor(pod *corev1.Pod, claim *resourcev1.ResourceClaim) error {
	// IsForPod requires that a pod with a PodGroup has its name.
	grouped := pod.Spec.SchedulingGroup != nil && pod.Spec.SchedulingGroup.PodGroupName != nil
	return resourceclaim.IsForPod(pod, claim, grouped)
}

// ofPodGroup says whether the claim was made for the pod's PodGroup.
func (r reference) ofPodGroup(pod *corev1.Pod, claim *resourcev1.ResourceClaim) bool {
	return r.generated && resourceclaim.IsForPod(pod, claim, false) != nil
}

func podObject(pod *corev1.Pod) framework.Object {
	return framework.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
}

func claimObject(namespace, name string) framework.Object {
	return framework.Object{Kind: "ResourceClaim", Namespace: namespace, Name: name}
}

// missing describes a claim of a template that does not exist yet.
func (r reference) missing() string {
	return fmt.Sprintf("kube-controller-manager to create the claim %q from its template", r.of)
}
