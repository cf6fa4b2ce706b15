// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// write makes the API changes of bindAPIUpdate of kube-scheduler's VolumeBinding, in its
// order: first the claimRefs, then selected-node. It omits a write that the object
// already contains. Afterwards, the plan contains the objects as returned by the API server, so
// that wait can recognize older states.
//
// Each write contains the resourceVersion that the decision was based on. On a conflict, the
// same write by another pod with the same claim counts. Any other write ends the attempt, and
// the next call decides again.
func (p *Plugin) write(ctx context.Context, node string, pl *plan) error {
	for i, m := range pl.static {
		bound, changed, err := volume.GetBindVolumeToClaim(m.volume, m.claim)
		if err != nil {
			return framework.Internal(object(m.volume), err)
		}
		if !changed {
			continue
		}
		if err := p.stillUnbound(ctx, m.claim); err != nil {
			return err
		}
		err = p.patch(ctx, bound, m.volume, "binding to "+describe(m.claim))
		if now := (&corev1.PersistentVolume{}); apierrors.IsConflict(err) && p.reread(ctx, bound, now) && claimedBy(now, m.claim) {
			bound, err = now, nil
		}
		if err != nil {
			return err
		}
		pl.static[i].volume = bound
	}
	for i, claim := range pl.dynamic {
		if claim.Annotations[volume.AnnSelectedNode] == node {
			continue
		}
		selected := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&selected.ObjectMeta, volume.AnnSelectedNode, node)
		err := p.patch(ctx, selected, claim, "setting selected-node to "+node)
		if now := (&corev1.PersistentVolumeClaim{}); apierrors.IsConflict(err) && p.reread(ctx, selected, now) && selectedFor(now, claim, node) {
			selected, err = now, nil
		}
		if err != nil {
			return err
		}
		pl.dynamic[i] = selected
	}
	return nil
}

// stillUnbound reads the claim before a volume is bound to it, because the write to the
// volume has no condition on the claim. A volume whose claimRef names a deleted claim
// would be released, and could be deleted.
func (p *Plugin) stillUnbound(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	now, err := framework.Get(ctx, p.h.Live, &corev1.PersistentVolumeClaim{}, claim.Namespace, claim.Name)
	if err != nil {
		return err
	}
	if now == nil || now.UID != claim.UID || now.DeletionTimestamp != nil || now.Spec.VolumeName != "" ||
		metav1.HasAnnotation(now.ObjectMeta, volume.AnnSelectedNode) {
		return framework.Wait(object(claim), "the claim changed while a volume was chosen for it").
			Advise("retry the Binding")
	}
	return nil
}

// claimedBy returns whether the claimRef is the one that write sets.
func claimedBy(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return pv.DeletionTimestamp == nil && volume.IsVolumeBoundToClaim(pv, claim) && pv.Spec.ClaimRef.UID == claim.UID
}

// selectedFor returns whether selected-node is the one that write sets.
func selectedFor(now, claim *corev1.PersistentVolumeClaim, node string) bool {
	return now.UID == claim.UID && now.DeletionTimestamp == nil && now.Annotations[volume.AnnSelectedNode] == node
}

// reread reads the object from the API server and returns whether that succeeded.
func (p *Plugin) reread(ctx context.Context, o, into client.Object) bool {
	return p.h.Live.Get(ctx, client.ObjectKeyFromObject(o), into) == nil
}

// patch writes the difference between two states of an object if the API server still holds
// the old one. It sets changed to the API server's response.
func (p *Plugin) patch(ctx context.Context, changed, old client.Object, doing string) error {
	difference := client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})
	err := p.h.Writer.Patch(ctx, changed, difference)
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err):
		return framework.Wait(object(old), "%s: conflict with another write", doing).Because(err).
			Advise("retry the Binding")
	case apierrors.IsNotFound(err):
		return framework.Refuse(object(old), "%s: the object was deleted", doing).Because(err).
			Advise("schedule the pod again")
	default:
		return framework.FromAPI(object(old), doing, err)
	}
}
