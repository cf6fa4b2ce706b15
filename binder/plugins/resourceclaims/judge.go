// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/prebind/prebind/binder/framework"
)

// state is how far a claim is on the way to the pod.
type state string

const (
	// unallocated: nobody has given it devices.
	unallocated state = "unallocated"
	// unreserved: it is allocated for the node, and not reserved for the pod.
	unreserved state = "unreserved"
	// borrowed: another attempt at the pod's bind has reserved it, and takes the
	// reservation back when it fails, unless this one marks the claim as well.
	borrowed state = "borrowed"
	// unready: it is reserved, and binding conditions are not true yet.
	unready state = "unready"
	// ready: the pod may be bound, as far as this claim is concerned.
	ready state = "ready"
)

// judgement is what is found of a claim.
type judgement struct {
	ref   reference
	claim *resourcev1.ResourceClaim
	state state
	// waits is the condition of an unready claim, in plain words.
	waits string
	// until is when an unready claim is given up.
	until time.Time
}

// period is the time that binding conditions have to become true.
type period struct {
	timeout time.Duration
	// began is when the bind began to wait: it counts for claims that do not tell
	// when they were allocated.
	began, now time.Time
}

// judge decides on a claim of the pod on the node. An error is the final word on
// this node.
func judge(pod *corev1.Pod, node *corev1.Node, ref reference, claim *resourcev1.ResourceClaim, within period) (judgement, error) {
	about := claimObject(claim.Namespace, claim.Name)
	j := judgement{ref: ref, claim: claim}
	if claim.DeletionTimestamp != nil {
		return j, framework.Refuse(about, "the claim is being deleted").Advise("make it anew, or correct the pod")
	}
	if ref.generated {
		if err := madeFor(pod, claim); err != nil {
			return j, framework.Refuse(about, "the claim was not made for this pod").Because(err).
				Advise("delete it: kube-controller-manager makes the pod's own")
		}
	}
	if claim.Status.Allocation == nil {
		j.state = unallocated
		return j, nil
	}
	if fits, err := admits(claim.Status.Allocation.NodeSelector, node); err != nil {
		return j, framework.Refuse(about, "the nodes of its allocation cannot be read: %v", err).Because(err)
	} else if !fits {
		return j, framework.Refuse(about, "its devices cannot be used on the node %s", node.Name).
			Advise("bind the pod to a node that its allocation admits")
	}
	if !resourceclaim.IsReservedForPod(pod, claim, true) {
		j.state = unreserved
		return j, reservable(pod, ref, claim)
	}
	return conditions(j, within)
}

// admits says whether the allocation's devices can be used on the node. One
// without a selector is for every node.
func admits(selector *corev1.NodeSelector, node *corev1.Node) (bool, error) {
	if selector == nil {
		return true, nil
	}
	parsed, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		return false, err
	}
	return parsed.Match(node), nil
}

// reservable says why an allocated claim cannot be reserved for the pod, or nil.
func reservable(pod *corev1.Pod, ref reference, claim *resourcev1.ResourceClaim) error {
	about := claimObject(claim.Namespace, claim.Name)
	switch {
	case ref.extended:
		return framework.Refuse(about, "the claim stands for extended resources and is not reserved for the pod, which only the scheduler does that made it").
			Advise("see why the scheduler did not reserve it")
	case ref.ofPodGroup(pod, claim):
		return framework.Refuse(about, "the claim is the PodGroup's and not reserved for it, which only a scheduler does that knows PodGroups").
			Advise("see why the scheduler did not reserve it")
	case len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize:
		return framework.Refuse(about, "the claim is reserved for %d pods already, and no more are possible", len(claim.Status.ReservedFor)).
			Advise("use another claim")
	default:
		return nil
	}
}

// conditions finds out whether the binding conditions of a reserved claim are true
// (KEP-5007). It follows DynamicResources: a failure condition that is true, or the
// end of the time since the allocation, is final. The failures of all devices are
// looked at first.
func conditions(j judgement, within period) (judgement, error) {
	about := claimObject(j.claim.Namespace, j.claim.Name)
	j.state = ready
	for i := range j.claim.Status.Allocation.Devices.Results {
		result := &j.claim.Status.Allocation.Devices.Results[i]
		if len(result.BindingConditions) == 0 {
			continue
		}
		status := deviceStatus(j.claim, result)
		for _, name := range result.BindingFailureConditions {
			if failed := apimeta.FindStatusCondition(status.Conditions, name); failed != nil && failed.Status == "True" {
				return j, framework.Refuse(about, "the device %s failed: %s (%s) %s", deviceName(result), name, failed.Reason, failed.Message).
					Advise("see the driver %s; the claim has to be allocated anew", result.Driver)
			}
		}
		for _, name := range result.BindingConditions {
			if j.state == ready && !apimeta.IsStatusConditionTrue(status.Conditions, name) {
				j.state = unready
				j.waits = fmt.Sprintf("the condition %s of the device %s, which its driver %s sets", name, deviceName(result), result.Driver)
			}
		}
	}
	if j.state == ready {
		return j, nil
	}
	since := within.began
	if at := j.claim.Status.Allocation.AllocationTimestamp; at != nil {
		since = at.Time
	}
	j.until = since.Add(within.timeout)
	if !within.now.Before(j.until) {
		return j, framework.Refuse(about, "its allocation is older than %s, and it is still waiting for %s", within.timeout, j.waits).
			Advise("see the driver; the claim has to be allocated anew")
	}
	return j, nil
}

// deviceStatus is what the driver says of an allocated device; empty while it says
// nothing.
func deviceStatus(claim *resourcev1.ResourceClaim, result *resourcev1.DeviceRequestAllocationResult) resourcev1.AllocatedDeviceStatus {
	for _, status := range claim.Status.Devices {
		if status.Driver == result.Driver && status.Pool == result.Pool && status.Device == result.Device && sameShare(status.ShareID, result) {
			return status
		}
	}
	return resourcev1.AllocatedDeviceStatus{}
}

func sameShare(id *string, result *resourcev1.DeviceRequestAllocationResult) bool {
	if id == nil || result.ShareID == nil {
		return id == nil && result.ShareID == nil
	}
	return *id == string(*result.ShareID)
}

func deviceName(result *resourcev1.DeviceRequestAllocationResult) string {
	return result.Driver + "/" + result.Pool + "/" + result.Device
}
