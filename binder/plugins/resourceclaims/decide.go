// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder/framework"
)

// readiness is the decision on all claims of a pod, and the extension of the context.
type readiness struct {
	// toTake contains the claims that PreBind has to reserve.
	toTake []reference
	wait   framework.Wait
}

// decide decides on the claims to which the pod refers. An error rejects the bind to this node.
func (p *Plugin) decide(bc *framework.BindContext, refs []reference, all claims) (readiness, error) {
	var r readiness
	var missing []reference
	for _, ref := range refs {
		if ref.claim == "" {
			missing = append(missing, ref)
			continue
		}
		if all[ref.claim] == nil {
			err := noSuchClaim(bc.Pod.Namespace, ref.claim)
			if ref.extended { // kube-scheduler deletes it after a failed bind, and its name stays in the status of the pod.
				err = err.Advise("recreate the pod")
			}
			return r, err
		}
		take, wait, err := p.assess(bc, ref, all[ref.claim])
		if err != nil {
			return r, err
		}
		if take {
			r.toTake = append(r.toTake, ref)
		}
		if r.wait.For == "" {
			r.wait = wait
		}
	}
	if len(missing) > 0 {
		// Nothing is reserved for a pod that may wait long.
		r.toTake = nil
		r.wait.Object, r.wait.For = framework.ObjectOf(bc.Pod), missing[0].missing()
	}
	return r, nil
}

func noSuchClaim(namespace, name string) *framework.Error {
	return framework.Refuse(claimObject(namespace, name), "does not exist").Advise("create it, or change the pod")
}

// assess decides on one claim: whether PreBind has to reserve it, and the wait for its binding conditions. An error
// rejects the bind to this node.
func (p *Plugin) assess(bc *framework.BindContext, ref reference, claim *resourcev1.ResourceClaim) (take bool, wait framework.Wait, err error) {
	about := framework.ObjectOf(claim)
	if claim.DeletionTimestamp != nil {
		return false, wait, framework.Refuse(about, "is being deleted").Advise("create it again, or change the pod")
	}
	if ref.generated {
		if err := madeFor(bc.Pod, claim); err != nil {
			return false, wait, framework.Refuse(about, "was not created for this pod").Because(err).
				Advise("delete it, so that kube-controller-manager creates a claim for the pod")
		}
	}
	if claim.Status.Allocation == nil {
		return false, wait, unallocated(bc.Pod, ref, claim)
	}
	// An allocation without a selector is available on every node.
	if selector := claim.Status.Allocation.NodeSelector; selector != nil {
		if fits, err := schedulinghelpers.MatchNodeSelectorTerms(bc.Node, selector); err != nil {
			return false, wait, framework.Refuse(about, "its allocation has an invalid node selector: %v", err).Because(err).
				Advise("allocate the claim again")
		} else if !fits {
			return false, wait, framework.Refuse(about, "its devices are not available on node %s", bc.Node.Name).
				Advise("bind the pod to a node that its allocation selects")
		}
	}
	if wait, err = p.conditions(bc, claim); err != nil {
		return false, wait, err
	}
	if !resourceclaim.IsReservedForPod(bc.Pod, claim, true) {
		return true, framework.Wait{}, reservable(bc.Pod, ref, claim)
	}
	if markOn(bc.Mark(), claim) == "" && resourceclaim.IsReservedForPod(bc.Pod, claim, false) && markedByOthers(claim, bc.Pod.UID, bc.Attempt) {
		// Another attempt at the bind has reserved the claim. It removes the reservation if it fails, unless this
		// attempt marks the claim too.
		return true, framework.Wait{}, nil
	}
	return false, wait, nil
}

// unallocated returns the error for a claim without an allocation.
func unallocated(pod *corev1.Pod, ref reference, claim *resourcev1.ResourceClaim) error {
	if err := schedulersOwn(pod, ref, claim, "allocate"); err != nil {
		return err
	}
	return framework.Refuse(framework.ObjectOf(claim), "not allocated by the scheduler").Advise("use a scheduler that supports ResourceClaims")
}

// reservable returns an error if an allocated claim cannot be reserved for the pod.
func reservable(pod *corev1.Pod, ref reference, claim *resourcev1.ResourceClaim) error {
	if err := schedulersOwn(pod, ref, claim, "reserve"); err != nil {
		return err
	}
	if len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize {
		return framework.Refuse(framework.ObjectOf(claim), "already reserved for %d pods, which is the maximum", len(claim.Status.ReservedFor)).
			Advise("use another claim")
	}
	return nil
}

// schedulersOwn returns an error for a claim that only a scheduler can allocate and reserve.
func schedulersOwn(pod *corev1.Pod, ref reference, claim *resourcev1.ResourceClaim, verb string) error {
	var does, who string
	switch {
	case ref.extended:
		does, who = "represents extended resources", "the scheduler that created it"
	case ref.ofPodGroup(pod, claim):
		does, who = "belongs to a PodGroup", "a scheduler that supports PodGroups"
	default:
		return nil
	}
	return framework.Refuse(framework.ObjectOf(claim), "%s and is not %sd: only %s can %s it", does, verb, who, verb).
		Advise("check why the scheduler did not %s it", verb)
}

// conditions returns the wait for the binding conditions of an allocated claim (KEP-5007), or zero.
// Like DynamicResources, it rejects the bind if a failure condition is true, or if the
// timeout has passed. Unlike DynamicResources, it checks the failure conditions of all devices first, and counts from the first call: the time of
// the allocation is that of another machine's clock.
func (p *Plugin) conditions(bc *framework.BindContext, claim *resourcev1.ResourceClaim) (framework.Wait, error) {
	wait := framework.Wait{Object: framework.ObjectOf(claim)}
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		if len(result.BindingConditions) == 0 {
			continue
		}
		status := deviceStatus(claim, result)
		for _, name := range result.BindingFailureConditions {
			if failed := apimeta.FindStatusCondition(status.Conditions, name); failed != nil && failed.Status == "True" {
				return wait, framework.Refuse(wait.Object, "device %s failed: %s (%s) %s", deviceName(result), name, failed.Reason, failed.Message).
					Advise("check driver %s, and allocate the claim again", result.Driver)
			}
		}
		for _, name := range result.BindingConditions {
			if wait.For == "" && !apimeta.IsStatusConditionTrue(status.Conditions, name) {
				wait.For = fmt.Sprintf("condition %s of device %s, set by driver %s", name, deviceName(result), result.Driver)
			}
		}
	}
	if wait.For == "" {
		return framework.Wait{}, nil
	}
	timeout := p.args.BindingTimeout.Duration
	if wait.Until = bc.Since.Add(timeout); !bc.Now.Before(wait.Until) {
		return wait, framework.Refuse(wait.Object, "timed out after %s waiting for %s", timeout, wait.For).
			Advise("check the driver, and allocate the claim again")
	}
	return wait, nil
}

// deviceStatus returns the status that the driver reports for an allocated device, or an
// empty one.
func deviceStatus(claim *resourcev1.ResourceClaim, result *resourcev1.DeviceRequestAllocationResult) resourcev1.AllocatedDeviceStatus {
	for _, status := range claim.Status.Devices {
		if status.Driver == result.Driver && status.Pool == result.Pool && status.Device == result.Device &&
			ptr.Deref(status.ShareID, "") == string(ptr.Deref(result.ShareID, "")) {
			return status
		}
	}
	return resourcev1.AllocatedDeviceStatus{}
}

func deviceName(result *resourcev1.DeviceRequestAllocationResult) string {
	return result.Driver + "/" + result.Pool + "/" + result.Device
}
