// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/volumes"
)

// wait waits until every claim of the plan is bound. It returns an error if that is no longer
// possible.
func (p *Plugin) wait(ctx context.Context, bc *framework.BindContext, pl plan) error {
	return framework.Await(ctx, p.h, bc, func(ctx context.Context, reader framework.Reader) (framework.Waiting, error) {
		return p.look(ctx, reader, bc, pl)
	})
}

// look checks the plan's claims once. It reads all of them, so that a final state of one
// claim ends the wait for the others.
func (p *Plugin) look(ctx context.Context, reader framework.Reader, bc *framework.BindContext, pl plan) (framework.Waiting, error) {
	_, node, err := framework.Present(ctx, reader, bc)
	if err != nil {
		return framework.Waiting{}, err
	}
	seen := make([]observed, 0, len(pl.static)+len(pl.dynamic))
	for _, m := range pl.static {
		now, err := observe(ctx, reader, m.claim, m.volume.Name)
		if err != nil {
			return framework.Waiting{}, err
		}
		seen = append(seen, now)
	}
	for _, claim := range pl.dynamic {
		now, err := observe(ctx, reader, claim, "")
		if err != nil {
			return framework.Waiting{}, err
		}
		seen = append(seen, now)
	}
	at := target{node: node}
	if slices.ContainsFunc(seen, func(now observed) bool { return now.volume != nil && volumes.IsMigratable(now.volume) }) {
		// The cache does not hold it.
		if at.csiNode, err = framework.Get(ctx, p.h.Live, &storagev1.CSINode{}, "", node.Name); err != nil {
			return framework.Waiting{}, err
		}
	}
	return pl.checkBindings(seen, at)
}

// observe reads a claim, and the volume of this name or, without one, the volume that the
// claim names.
func observe(ctx context.Context, reader framework.Reader, claim *corev1.PersistentVolumeClaim, name string) (observed, error) {
	now, err := framework.Get(ctx, reader, &corev1.PersistentVolumeClaim{}, claim.Namespace, claim.Name)
	if now == nil || now.UID != claim.UID {
		return observed{}, err
	}
	if name == "" {
		name = now.Spec.VolumeName
	}
	pv, err := framework.Get(ctx, reader, &corev1.PersistentVolume{}, "", name)
	return observed{claim: now, volume: pv}, err
}
