// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// usable checks that the pod may use the claim, which can be nil.
func (s snapshot) usable(ref volumes.ClaimRef, claim *corev1.PersistentVolumeClaim) error {
	switch {
	case claim == nil:
		return framework.Refuse(s.claimObject(ref), "the claim does not exist").Advise("create it, or correct the pod")
	case ref.Ephemeral != nil && ephemeral.VolumeIsForPod(s.pod, claim) != nil:
		return framework.Refuse(object(claim), "the claim was not created for ephemeral volume %q of this pod", ref.Ephemeral.Name).
			Advise("delete the claim, or rename the pod or its volume")
	case metav1.HasAnnotation(claim.ObjectMeta, volumes.TooLarge):
		return framework.Refuse(object(claim), "the spec of the claim is too large for Prebind").Advise("use a shorter selector")
	case claim.DeletionTimestamp != nil:
		return framework.Refuse(object(claim), "the claim is being deleted").Advise("create it again after its deletion")
	case claim.Status.Phase == corev1.ClaimLost:
		return framework.Refuse(object(claim), "the claim lost its PersistentVolume %q", claim.Spec.VolumeName).
			Advise("restore the volume, or delete the claim")
	}
	return nil
}

func (s snapshot) claimObject(ref volumes.ClaimRef) framework.Object {
	return framework.Object{Kind: "PersistentVolumeClaim", Namespace: s.pod.Namespace, Name: ref.Name}
}

// checkBound checks that the volume of a bound claim names the claim and can be used on
// the node.
func (s snapshot) checkBound(claim *corev1.PersistentVolumeClaim) error {
	pv, ok := s.volumes[claim.Spec.VolumeName]
	if !ok {
		return framework.Refuse(object(claim), "its PersistentVolume %s does not exist", claim.Spec.VolumeName).
			Advise("restore the volume, or delete the claim")
	}
	if !volume.IsVolumeBoundToClaim(pv, claim) {
		return framework.Refuse(object(claim), "the claimRef of its PersistentVolume %s does not name the claim", pv.Name).
			Advise("correct the claimRef, or delete the claim")
	}
	return s.checkAffinity(pv)
}

// checkDelayed checks that the binding mode of an unbound claim is WaitForFirstConsumer, and
// that no other node was selected for it.
func (s snapshot) checkDelayed(claim *corev1.PersistentVolumeClaim) error {
	name := volume.GetPersistentVolumeClaimClass(claim)
	class := s.classes[name]
	switch {
	case claim.Spec.VolumeName != "":
		return framework.Refuse(object(claim), "the claim requests PersistentVolume %s and is not bound to it yet", claim.Spec.VolumeName).
			Advise("wait until the claim is bound; see its events")
	case name != "" && class == nil:
		return framework.Refuse(object(claim), "the claim is not bound, and its StorageClass %s does not exist", name).
			Advise("create the class, or correct the claim")
	case class == nil || class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return framework.Refuse(object(claim), "the claim is not bound yet, and its volumeBindingMode is not WaitForFirstConsumer").
			Advise("wait until the claim is bound; see its events")
	}
	if chosen, ok := claim.Annotations[volume.AnnSelectedNode]; ok && chosen != s.node.Name {
		return framework.Refuse(object(claim), "its volume is being provisioned on node %s", chosen).
			Advise("bind the pod to %s, or delete the claim to start again", chosen)
	}
	return nil
}

// object refers to a claim or a volume in errors.
func object(o metav1.Object) framework.Object {
	kind := "PersistentVolume"
	if _, ok := o.(*corev1.PersistentVolumeClaim); ok {
		kind = "PersistentVolumeClaim"
	}
	return framework.Object{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
}

// describe names a claim in the middle of a sentence.
func describe(claim *corev1.PersistentVolumeClaim) string {
	return fmt.Sprintf("claim %s/%s", claim.Namespace, claim.Name)
}
