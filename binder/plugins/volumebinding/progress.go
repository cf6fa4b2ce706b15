// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// observed is a claim of the plan in its present state.
type observed struct {
	// claim is nil if it does not exist.
	claim *corev1.PersistentVolumeClaim
	// volume is the matched volume, or the one that the claim names. It is nil if it does not
	// exist.
	volume *corev1.PersistentVolume
}

// checkBindings checks the observed claims of the plan, first the static ones and then the
// dynamic ones. It returns what to wait for, the zero Waiting if all are bound. An
// error ends the wait.
func (p plan) checkBindings(seen []observed, at target) (framework.Waiting, error) {
	var first framework.Waiting
	for i, now := range seen {
		var got progress
		var err error
		if i < len(p.static) {
			got, err = staticProgress(p.static[i], now, at)
		} else {
			got, err = dynamicProgress(p.dynamic[i-len(p.static)], now, at)
		}
		if err != nil {
			return framework.Waiting{}, err
		}
		if !got.bound && first == (framework.Waiting{}) {
			first = got.waiting
		}
	}
	return first, nil
}

// progress is the state of the binding of a claim.
type progress struct {
	bound bool
	// waiting describes the wait of a claim that is not bound.
	waiting framework.Waiting
}

// staticProgress checks a claim that was matched with a volume. An error is final.
// It follows checkBindings of kube-scheduler's VolumeBinding.
func staticProgress(m match, now observed, at target) (progress, error) {
	if err := now.claimUsable(m.claim); err != nil {
		return progress{}, err
	}
	if volumes.IsBound(now.claim) && now.claim.Spec.VolumeName != m.volume.Name {
		return progress{}, framework.Wait(object(m.claim), "the claim is bound to PersistentVolume %s instead of %s", now.claim.Spec.VolumeName, m.volume.Name).
			Advise("retry the Binding")
	}
	if now.volume == nil {
		return progress{}, framework.Refuse(object(m.volume), "the volume was deleted while it was being bound to %s", describe(m.claim)).
			Advise("schedule the pod again")
	}
	waiting := progress{waiting: framework.Waiting{
		Object: object(m.claim),
		For:    "the PersistentVolume controller to bind it to PersistentVolume " + m.volume.Name,
	}}
	if older(now.volume, m.volume) {
		return waiting, nil
	}
	if ref := now.volume.Spec.ClaimRef; ref == nil || ref.UID != m.claim.UID {
		return progress{}, framework.Refuse(object(m.volume), "its claimRef no longer names %s", describe(m.claim)).
			Advise("schedule the pod again")
	}
	if err := at.checkAffinity(now.volume); err != nil {
		return progress{}, err
	}
	return reached(waiting, now), nil
}

// dynamicProgress checks a claim whose volume is being provisioned. An error is final.
func dynamicProgress(planned *corev1.PersistentVolumeClaim, now observed, at target) (progress, error) {
	if err := now.claimUsable(planned); err != nil {
		return progress{}, err
	}
	waiting := progress{waiting: framework.Waiting{
		Object: object(planned),
		For:    "provisioning on " + at.node.Name + by(now.claim),
	}}
	if older(now.claim, planned) {
		return waiting, nil
	}
	switch chosen := now.claim.Annotations[volume.AnnSelectedNode]; chosen {
	case at.node.Name:
	case "":
		return progress{}, framework.Refuse(object(planned), "the provisioner failed on node %s and requests another node", at.node.Name).
			Advise("schedule the pod again; see the events of the claim")
	default:
		return progress{}, framework.Refuse(object(planned), "its selected-node was changed to %s", chosen).
			Advise("bind the pod to %s", chosen)
	}
	if now.volume != nil {
		if err := at.checkAffinity(now.volume); err != nil {
			return progress{}, err
		}
	}
	return reached(waiting, now), nil
}

// claimUsable checks that the claim of the plan can still be bound.
func (o observed) claimUsable(planned *corev1.PersistentVolumeClaim) error {
	switch {
	case o.claim == nil:
		return framework.Refuse(object(planned), "the claim was deleted while its volume was being bound").
			Advise("create it, or correct the pod")
	case o.claim.DeletionTimestamp != nil:
		return framework.Refuse(object(planned), "the claim is being deleted").Advise("create it again after its deletion")
	case o.claim.Status.Phase == corev1.ClaimLost:
		return lost(o.claim)
	}
	return nil
}

// reached checks that the claim is bound and that its volume names it.
func reached(waiting progress, now observed) progress {
	if !volumes.IsBound(now.claim) || now.volume == nil || now.claim.Spec.VolumeName != now.volume.Name ||
		!volume.IsVolumeBoundToClaim(now.volume, now.claim) {
		return waiting
	}
	return progress{bound: true}
}

// by names the provisioner of the claim's volume if it is known.
func by(claim *corev1.PersistentVolumeClaim) string {
	name := claim.Annotations[volume.AnnStorageProvisioner]
	if name == "" {
		return ""
	}
	return " by " + name
}

// older returns whether the object is older than the state that a write left. A version that
// cannot be compared counts as newer.
func older(now, written metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(now.GetResourceVersion(), written.GetResourceVersion())
	return err == nil && order < 0
}
