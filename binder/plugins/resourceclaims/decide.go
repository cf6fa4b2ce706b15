// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/prebind/prebind/binder/framework"
)

// state is the progress of a claim towards the bind of the pod.
type state string

const (
	// unreserved: the claim is allocated for the node, but not reserved for the pod.
	unreserved state = "unreserved"
	// borrowed: another attempt at the bind has reserved the claim. It removes the
	// reservation if it fails, unless this attempt marks the claim too.
	borrowed state = "borrowed"
	// unready: the claim is reserved, and a binding condition is not true yet.
	unready state = "unready"
	// ready: the claim is ready for the bind.
	ready state = "ready"
)

// assessment is the decision on one claim.
type assessment struct {
	ref   reference
	claim *resourcev1.ResourceClaim
	state state
	// waits is the condition that an unready claim waits for.
	waits string
	// until is when an unready claim is rejected.
	until time.Time
}

// basis contains the input of a decision, except for the claims.
type basis struct {
	*framework.BindContext
	// timeout is the maximum time until binding conditions are true.
	timeout time.Duration
}

// readiness is the decision on all claims of a pod.
type readiness struct {
	basis
	// unmade are the references to claims of templates that do not exist yet.
	unmade []reference
	claims []assessment
}

// readiness decides on the claims of the pod. all contains the claims by name. An error
// rejects the bind to this node.
func (b basis) readiness(all claims) (readiness, error) {
	r := readiness{basis: b}
	refs, err := references(b.Pod)
	if err != nil {
		return r, err
	}
	for _, ref := range refs {
		if ref.claim == "" {
			r.unmade = append(r.unmade, ref)
			continue
		}
		if all[ref.claim] == nil {
			return r, noSuchClaim(b.Pod.Namespace, ref.claim)
		}
		a, err := b.assess(ref, all[ref.claim])
		if err != nil {
			return r, err
		}
		r.claims = append(r.claims, a)
	}
	return r, nil
}

func noSuchClaim(namespace, name string) *framework.Error {
	return framework.Refuse(claimObject(namespace, name), "does not exist").Advise("create it, or change the pod")
}

// assess decides on one claim. An error rejects the bind to this node.
func (b basis) assess(ref reference, claim *resourcev1.ResourceClaim) (assessment, error) {
	about := claimObject(claim.Namespace, claim.Name)
	a := assessment{ref: ref, claim: claim}
	if claim.DeletionTimestamp != nil {
		return a, framework.Refuse(about, "is being deleted").Advise("create it again, or change the pod")
	}
	if ref.generated {
		if err := madeFor(b.Pod, claim); err != nil {
			return a, framework.Refuse(about, "was not created for this pod").Because(err).
				Advise("delete it, so that kube-controller-manager creates a claim for the pod")
		}
	}
	if claim.Status.Allocation == nil {
		return a, unallocated(b.Pod, ref, claim)
	}
	// An allocation without a selector is available on every node.
	if selector := claim.Status.Allocation.NodeSelector; selector != nil {
		if fits, err := schedulinghelpers.MatchNodeSelectorTerms(b.Node, selector); err != nil {
			return a, framework.Refuse(about, "its allocation has an invalid node selector: %v", err).Because(err).
				Advise("allocate the claim again")
		} else if !fits {
			return a, framework.Refuse(about, "its devices are not available on node %s", b.Node.Name).
				Advise("bind the pod to a node that its allocation selects")
		}
	}
	if !resourceclaim.IsReservedForPod(b.Pod, claim, true) {
		a.state = unreserved
		return a, reservable(b.Pod, ref, claim)
	}
	if err := b.conditions(&a); err != nil {
		return a, err
	}
	if claim.Annotations[markKey(b.Pod.UID, b.Attempt)] == "" && reservedFor(claim, b.Pod.UID) && markedByOthers(claim, b.Pod.UID, b.Attempt) {
		a.state = borrowed
	}
	return a, nil
}

// unallocated returns the error for a claim without an allocation.
func unallocated(pod *corev1.Pod, ref reference, claim *resourcev1.ResourceClaim) error {
	if err := schedulersOwn(pod, ref, claim, "allocate"); err != nil {
		return err
	}
	return framework.Refuse(claimObject(claim.Namespace, claim.Name), "not allocated by the scheduler").Advise("use a scheduler that supports ResourceClaims")
}

// reservable returns an error if an allocated claim cannot be reserved for the pod.
func reservable(pod *corev1.Pod, ref reference, claim *resourcev1.ResourceClaim) error {
	if err := schedulersOwn(pod, ref, claim, "reserve"); err != nil {
		return err
	}
	if len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize {
		return framework.Refuse(claimObject(claim.Namespace, claim.Name), "already reserved for %d pods, which is the maximum", len(claim.Status.ReservedFor)).
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
	return framework.Refuse(claimObject(claim.Namespace, claim.Name), "%s and is not %sd: only %s can %s it", does, verb, who, verb).
		Advise("check why the scheduler did not %s it", verb)
}

// conditions decides whether the binding conditions of a reserved claim are true (KEP-5007).
// Like DynamicResources, it rejects the bind if a failure condition is true, or if the
// timeout since the allocation has passed. Unlike DynamicResources, it checks the failure
// conditions of all devices first.
func (b basis) conditions(a *assessment) error {
	about := claimObject(a.claim.Namespace, a.claim.Name)
	a.state = ready
	for i := range a.claim.Status.Allocation.Devices.Results {
		result := &a.claim.Status.Allocation.Devices.Results[i]
		if len(result.BindingConditions) == 0 {
			continue
		}
		status := deviceStatus(a.claim, result)
		for _, name := range result.BindingFailureConditions {
			if failed := apimeta.FindStatusCondition(status.Conditions, name); failed != nil && failed.Status == "True" {
				return framework.Refuse(about, "device %s failed: %s (%s) %s", deviceName(result), name, failed.Reason, failed.Message).
					Advise("check driver %s, and allocate the claim again", result.Driver)
			}
		}
		for _, name := range result.BindingConditions {
			if a.state == ready && !apimeta.IsStatusConditionTrue(status.Conditions, name) {
				a.state = unready
				a.waits = fmt.Sprintf("condition %s of device %s, set by driver %s", name, deviceName(result), result.Driver)
			}
		}
	}
	if a.state == ready {
		return nil
	}
	since := b.Since // The allocation has no timestamp.
	if at := a.claim.Status.Allocation.AllocationTimestamp; at != nil {
		since = at.Time
	}
	a.until = since.Add(b.timeout)
	if !b.Now.Before(a.until) {
		return framework.Refuse(about, "allocated more than %s ago and still waiting for %s", b.timeout, a.waits).
			Advise("check the driver, and allocate the claim again")
	}
	return nil
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

// in returns the claims in one of these states.
func (r readiness) in(wanted ...state) []assessment {
	var found []assessment
	for _, a := range r.claims {
		for _, state := range wanted {
			if a.state == state {
				found = append(found, a)
			}
		}
	}
	return found
}

// toTake returns the claims that PreBind has to reserve. It returns none while a claim of
// the pod does not exist, so that nothing is reserved for a pod that may wait long.
func (r readiness) toTake() []assessment {
	if len(r.unmade) > 0 {
		return nil
	}
	return r.in(unreserved, borrowed)
}

// writes lists the reservations that PreBind makes.
func (r readiness) writes() []string {
	var all []string
	for _, a := range r.toTake() {
		all = append(all, fmt.Sprintf("reserve %s for the pod", claimObject(a.claim.Namespace, a.claim.Name)))
	}
	return all
}

// wait returns the first wait. It ends when the first claim is rejected.
func (r readiness) wait() framework.Wait {
	var w framework.Wait
	if len(r.unmade) > 0 {
		w = framework.Wait{Object: podObject(r.Pod), For: r.unmade[0].missing()}
	}
	for _, a := range r.in(unready) {
		if w.For == "" {
			w = framework.Wait{Object: claimObject(a.claim.Namespace, a.claim.Name), For: a.waits}
		}
		if w.Until.IsZero() || a.until.Before(w.Until) {
			w.Until = a.until
		}
	}
	return w
}
