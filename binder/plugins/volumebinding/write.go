// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
)

// write makes the API changes of bindAPIUpdate of kube-scheduler's
// VolumeBinding, in its order: claimRefs first, selected-node then. What is
// right already is not written again. In the plan it leaves the objects as the
// API server answered them, so that wait can tell an older state from a newer.
//
// Each write carries the resourceVersion that the decision was based on. Where
// another was faster, the attempt ends, and the next call decides anew.
func (p *Plugin) write(ctx context.Context, node string, pl *plan) error {
	for i, m := range pl.static {
		bound, changed, err := volume.GetBindVolumeToClaim(m.volume, m.claim)
		if err != nil {
			return api.Internal(object(m.volume), err)
		}
		if !changed {
			continue
		}
		if err := p.patch(ctx, bound, m.volume, "binding it to "+describe(m.claim)); err != nil {
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
		if err := p.patch(ctx, selected, claim, "setting its selected-node to "+node); err != nil {
			return err
		}
		pl.dynamic[i] = selected
	}
	return nil
}

// patch writes the difference between two states of an object, and nothing
// else, on the condition that the API server still holds the old one. The new
// one is replaced by what the API server answers.
func (p *Plugin) patch(ctx context.Context, changed, old client.Object, doing string) error {
	difference := client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})
	err := p.writer.Patch(ctx, changed, difference)
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err):
		return api.Wait(object(old), "%s: somebody else changed it at the same time", doing).Because(err)
	case apierrors.IsNotFound(err):
		return api.Refuse(object(old), "%s: it was deleted", doing).Because(err)
	default:
		return api.FromAPI(object(old), doing, err)
	}
}
