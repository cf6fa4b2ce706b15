// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claimed contains the form of ResourceClaims in the cache. For the mutators, it finds the
// devices that are allocated to a pod by its claims. It only reads.
package claimed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/mutators"
)

// Permissions of Prebind while a mutator needs the devices of claims.
//
// +kubebuilder:rbac:groups=resource.k8s.io,resources=resourceclaims,verbs=get;list;watch

// Kind is the kind of claims. A cluster may not serve it.
var Kind = resourcev1.SchemeGroupVersion.WithKind("ResourceClaim")

// maxOwner is the maximum size of an owner in the cache, in bytes. Those of pods and PodGroups are smaller. A tenant can write larger ones.
const maxOwner = 1 << 10

// maxMarks is the maximum size of all marks of a claim in the cache, in bytes. The plugin adds marks up to 48 KiB. Tenants can write more.
const maxMarks = 64 << 10

// MaxClaims is the maximum number of claims of a pod whose devices Devices returns, and which Prebind reserves. A claim has at most 32
// devices. A tenant can write pods with more claims, and refer to a claim more than once.
const MaxClaims = 128

// Trim is the transform of claims in the cache. It may change the object. Tenants control the size of a claim, so Trim keeps only the parts of
// the metadata and of the status that Prebind reads. Annotations are the marks of the plugin resource-claims.
func Trim(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	marks, size := map[string]string{}, 0
	for _, key := range slices.Sorted(maps.Keys(claim.Annotations)) { // Two replicas keep the same marks.
		value := claim.Annotations[key]
		if more := len(key) + len(value); strings.HasPrefix(key, "resource-claims."+v1alpha1.Domain+"/") && size+more <= maxMarks {
			marks[key] = value
			size += more
		}
	}
	var owners []metav1.OwnerReference
	if controller := metav1.GetControllerOfNoCopy(claim); controller != nil && controller.Size() <= maxOwner {
		owners = []metav1.OwnerReference{*controller}
	}
	claim.Annotations, claim.OwnerReferences = marks, owners
	claim.Labels, claim.Finalizers, claim.ManagedFields, claim.Spec = nil, nil, nil, resourcev1.ResourceClaimSpec{}
	if claim.Status.Allocation != nil {
		claim.Status.Allocation.Devices.Config = nil
	}
	for i := range claim.Status.Devices {
		claim.Status.Devices[i].Data, claim.Status.Devices[i].NetworkData = nil, nil
	}
	return claim
}

// Devices returns the devices that the claims of the pod are allocated, in the order of
// the pod's claims and of their requests. A device's Request is the name of the claim in
// the pod, a dot, and the name of the request in the claim, as in gpus.large. The error
// names the claims that cannot be read or have no allocation. Devices returns the devices
// of the other claims also with an error. It reads a claim live if the cached one has no
// allocation or no reservation for the pod, because the cache may lack a new allocation.
// For a pod with too many claims, Devices returns only an error. If a retry can succeed, the error
// contains a *framework.Error of KindWait.
func Devices(ctx context.Context, cached, live client.Reader, pod *corev1.Pod) ([]mutators.Device, error) {
	if n := len(pod.Spec.ResourceClaims); n > MaxClaims {
		return nil, fmt.Errorf("the pod has %d claims, and the maximum is %d", n, MaxClaims)
	}
	var devices []mutators.Device
	var errs []error
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.Name(pod, ref)
		if err == nil && name == nil {
			continue // The template needs no claim.
		}
		var claim *resourcev1.ResourceClaim
		if err == nil {
			claim, err = allocated(ctx, cached, live, pod, client.ObjectKey{Namespace: pod.Namespace, Name: *name})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("claim %q of the pod: %w", ref.Name, err))
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			devices = append(devices, mutators.Device{
				Request: ref.Name + "." + result.Request,
				Driver:  result.Driver, Pool: result.Pool, Name: result.Device, Share: string(ptr.Deref(result.ShareID, "")),
			})
		}
	}
	return devices, errors.Join(errs...)
}

func allocated(ctx context.Context, cached, live client.Reader, pod *corev1.Pod, key client.ObjectKey) (*resourcev1.ResourceClaim, error) {
	claim := &resourcev1.ResourceClaim{}
	err := cached.Get(ctx, key, claim)
	// With a reservation for this pod, the allocation is not an outdated one. A reservation for its PodGroup can be for an earlier one of this name.
	if err == nil && claim.Status.Allocation != nil && resourceclaim.IsReservedForPod(pod, claim, false) {
		return claim, nil
	}
	claim, err = framework.Get(ctx, live, &resourcev1.ResourceClaim{}, key.Namespace, key.Name)
	switch {
	case err != nil:
		return nil, err
	case claim == nil:
		return nil, fmt.Errorf("ResourceClaim %s does not exist", key)
	case claim.Status.Allocation == nil:
		return nil, errors.New("not allocated")
	}
	return claim, nil
}
