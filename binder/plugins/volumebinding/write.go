// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// write makes the API changes of bindAPIUpdate of kube-scheduler's VolumeBinding, in its
// order: first the claimRefs, then selected-node. It omits a write that the object
// already contains. Each write contains the resourceVersion that the decision was based on.
func (p *Plugin) write(ctx context.Context, bc *framework.BindContext, pl plan) error {
	for _, m := range pl.static {
		bound, changed, err := volume.GetBindVolumeToClaim(m.volume, m.claim)
		if err != nil {
			return framework.Internal(framework.ObjectOf(m.volume), err)
		}
		if !changed {
			continue
		}
		// The write to the volume has no condition on the claim. A volume whose claimRef names a
		// deleted claim would be released, and could be deleted.
		if err := p.checkCurrent(ctx, m.claim); err != nil {
			return err
		}
		if err := p.patch(ctx, bound, m.volume, "binding to "+describe(m.claim)); err != nil {
			return err
		}
	}
	for _, claim := range pl.dynamic {
		if claim.Annotations[volume.AnnSelectedNode] == bc.Node.Name {
			continue
		}
		if bc.Written {
			// The cache is behind the earlier write, or the provisioner has undone it.
			if err := p.checkCurrent(ctx, claim); err != nil {
				return err
			}
			return framework.Refuse(framework.ObjectOf(claim), "its selected-node is not node %s any more: the provisioner requests another node, or the claim or its volume was replaced", bc.Node.Name).
				Advise("schedule the pod again; see the events of the claim")
		}
		selected := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&selected.ObjectMeta, volume.AnnSelectedNode, bc.Node.Name)
		if err := p.patch(ctx, selected, claim, "setting selected-node to "+bc.Node.Name); err != nil {
			return err
		}
	}
	return nil
}

// checkCurrent returns an error if the API server has another version of the object. A dry run changes
// nothing, and fails with a conflict like a write.
func (p *Plugin) checkCurrent(ctx context.Context, o client.Object) error {
	same, _ := o.DeepCopyObject().(client.Object)
	return p.patch(ctx, same, o, "checking that it is current", client.DryRunAll)
}

// patch writes the difference between two states of an object if the API server still holds
// the old one.
func (p *Plugin) patch(ctx context.Context, changed, old client.Object, doing string, options ...client.PatchOption) error {
	difference := client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})
	err := p.h.Writer.Patch(ctx, changed, difference, options...)
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return behind(old, err)
	default:
		return framework.FromAPI(framework.ObjectOf(old), doing, err)
	}
}

// behind returns the error of a write that failed because the cache is behind. The bind waits for a
// change and decides again.
func behind(o client.Object, cause error) error {
	return framework.NotYet(framework.ObjectOf(o), "the cache to show another write").Because(cause).Advise("retry the Binding")
}
