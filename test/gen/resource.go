// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package gen

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sharedPool is the pool of devices that every node can use.
const sharedPool = "shared"

// ResourceClaimOption is an option of ResourceClaim and ResourceClaimTemplate.
type ResourceClaimOption interface {
	applyResourceClaim(claim *resourcev1.ResourceClaim)
}

type resourceClaimFunc func(*resourcev1.ResourceClaim)

func (f resourceClaimFunc) applyResourceClaim(o *resourcev1.ResourceClaim) { f(o) }

var _ ResourceClaimOption = Meta(nil)

func (m Meta) applyResourceClaim(o *resourcev1.ResourceClaim) { m(&o.ObjectMeta) }

// ResourceClaim makes a claim that requests nothing.
func ResourceClaim(name string, options ...ResourceClaimOption) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: name},
	}
	for _, o := range options {
		o.applyResourceClaim(claim)
	}
	return claim
}

// ResourceClaimTemplate makes a template of the claim that the options make.
func ResourceClaimTemplate(name string, options ...ResourceClaimOption) *resourcev1.ResourceClaimTemplate {
	claim := ResourceClaim(name, options...)
	return &resourcev1.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: name},
		Spec:       resourcev1.ResourceClaimTemplateSpec{Spec: claim.Spec},
	}
}

// RequestsDevices adds a request, with the name of the class, of this many devices.
func RequestsDevices(class string, count int64) ResourceClaimOption {
	return resourceClaimFunc(func(claim *resourcev1.ResourceClaim) {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourcev1.DeviceRequest{
			Name:    fmt.Sprintf("request-%d", len(claim.Spec.Devices.Requests)),
			Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, Count: count},
		})
	})
}

// AllocatedFor is a claim that a scheduler has allocated this device of the driver,
// from the node's pool, for the first request; of the shared pool with an empty
// node.
func AllocatedFor(node, driver string, device resourcev1.Device) ResourceClaimOption {
	return resourceClaimFunc(func(claim *resourcev1.ResourceClaim) {
		allocation := &resourcev1.AllocationResult{AllocationTimestamp: new(metav1.Now())}
		if node != "" {
			allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}
		}
		allocation.Devices.Results = []resourcev1.DeviceRequestAllocationResult{{
			Request: claim.Spec.Devices.Requests[0].Name, Driver: driver, Pool: poolOf(node), Device: device.Name,
			BindingConditions: device.BindingConditions, BindingFailureConditions: device.BindingFailureConditions,
		}}
		claim.Status.Allocation = allocation
	})
}

// ReservedForPod is a claim that is reserved for the pod.
func ReservedForPod(name string, uid types.UID) ResourceClaimOption {
	return resourceClaimFunc(func(claim *resourcev1.ResourceClaim) {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: uid})
	})
}

// DeviceClass makes the class of all devices of the driver of the same name.
func DeviceClass(name string) *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "DeviceClass"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", name)},
		}}},
	}
}

// ResourceSlice makes the only slice of the node's pool, which is of the node's
// name; with an empty node, of sharedPool, for every node.
func ResourceSlice(driver, node string, devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"},
		ObjectMeta: metav1.ObjectMeta{Name: poolOf(node) + "-" + driver},
		Spec: resourcev1.ResourceSliceSpec{
			Driver:  driver,
			Pool:    resourcev1.ResourcePool{Name: poolOf(node), Generation: 1, ResourceSliceCount: 1},
			Devices: devices,
		},
	}
	if node == "" {
		slice.Spec.AllNodes = new(true)
	} else {
		slice.Spec.NodeName = &node
	}
	return slice
}

func poolOf(node string) string {
	if node == "" {
		return sharedPool
	}
	return node
}

// Device creates a device with only a name.
func Device(name string) resourcev1.Device { return resourcev1.Device{Name: name} }

// Devices makes n devices, called PREFIX-0 and on.
func Devices(prefix string, n int) []resourcev1.Device {
	devices := make([]resourcev1.Device, n)
	for i := range devices {
		devices[i] = Device(fmt.Sprintf("%s-%d", prefix, i))
	}
	return devices
}

// BoundBy makes a device that its driver has to make ready when it is allocated:
// its conditions ready and failed say what came of it.
func BoundBy(device resourcev1.Device, ready, failed string) resourcev1.Device {
	device.BindingConditions = []string{ready}
	device.BindingFailureConditions = []string{failed}
	return device
}

// UsesResourceClaim adds a claim, that the pod calls by its own name, to the pod and
// its container.
func UsesResourceClaim(claim string) PodOption {
	return usesResources(corev1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
}

// UsesResourceClaimTemplate adds a claim that is made from the template, whose name
// the pod calls it by, to the pod and its container.
func UsesResourceClaimTemplate(template string) PodOption {
	return usesResources(corev1.PodResourceClaim{Name: template, ResourceClaimTemplateName: &template})
}

func usesResources(claim corev1.PodResourceClaim) PodOption {
	return podFunc(func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, claim)
		resources := &pod.Spec.Containers[0].Resources
		resources.Claims = append(resources.Claims, corev1.ResourceClaim{Name: claim.Name})
	})
}
