// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
)

// wait returns when every claim of the plan is bound, or with the error that
// makes it impossible. It looks when something changed, and only then.
func (p *Plugin) wait(ctx context.Context, bc *framework.BindContext, pl plan) error {
	changes := p.changes.Subscribe(
		framework.RefTo(&corev1.Pod{}, bc.Pod.Namespace, bc.Pod.Name),
		framework.RefTo(&corev1.Node{}, "", bc.Node.Name),
	)
	defer changes.Close()
	for _, m := range pl.static {
		changes.Add(claimKey(m.claim.Namespace, m.claim.Name), volumeKey(m.volume.Name))
	}
	for _, claim := range pl.dynamic {
		changes.Add(claimKey(claim.Namespace, claim.Name))
	}
	for {
		waiting, err := p.look(ctx, bc, pl, changes)
		if err != nil || waiting == nil {
			return err
		}
		bc.Waiting(*waiting)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changes.C():
		}
	}
}

// look judges the present state once: it returns what to wait for, nil when
// nothing, or the error that ends the wait. The cache alone ends nothing, for it
// may be behind: the API server is asked then.
func (p *Plugin) look(ctx context.Context, bc *framework.BindContext, pl plan, changes *framework.Subscription) (*framework.Waiting, error) {
	waiting, err := p.lookBy(ctx, bc, pl, changes, p.read)
	if framework.IsKind(err, framework.KindRefuse) || framework.IsKind(err, framework.KindStale) || framework.IsKind(err, framework.KindWait) {
		return p.lookBy(ctx, bc, pl, changes, p.readLive)
	}
	return waiting, err
}

// lookBy reads everything by the given reader and judges it. All claims are
// looked at, so that what is final for one of them ends the wait for the others.
func (p *Plugin) lookBy(ctx context.Context, bc *framework.BindContext, pl plan, changes *framework.Subscription, read reader) (*framework.Waiting, error) {
	if err := podStillPending(ctx, bc.Pod, read); err != nil {
		return nil, err
	}
	node, err := nodeNow(ctx, bc.Node.Name, read)
	if err != nil {
		return nil, err
	}
	var seen []observed
	var volumes []*corev1.PersistentVolume
	see := func(claim *corev1.PersistentVolumeClaim, volume string) error {
		now, err := observe(ctx, claim, volume, changes, read)
		seen = append(seen, now)
		if now.volume != nil {
			volumes = append(volumes, now.volume)
		}
		return err
	}
	for _, m := range pl.static {
		if err := see(m.claim, m.volume.Name); err != nil {
			return nil, err
		}
	}
	for _, claim := range pl.dynamic {
		if err := see(claim, ""); err != nil {
			return nil, err
		}
	}
	csiNode, err := p.readCSINode(ctx, node.Name, slices.ContainsFunc(volumes, migratable))
	if err != nil {
		return nil, err
	}
	return pl.judge(seen, target{node: node, csiNode: csiNode})
}

// observe reads a claim, and the volume of this name or else the one that the
// claim names.
func observe(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string, changes *framework.Subscription, read reader) (observed, error) {
	now := observed{claim: &corev1.PersistentVolumeClaim{}}
	found, err := read(ctx, "PersistentVolumeClaim", claim.Namespace, claim.Name, now.claim)
	if err != nil {
		return observed{}, err
	}
	if !found || now.claim.UID != claim.UID {
		return observed{}, nil
	}
	if name == "" {
		name = now.claim.Spec.VolumeName
	}
	if name == "" {
		return now, nil
	}
	changes.Add(volumeKey(name))
	pv := &corev1.PersistentVolume{}
	found, err = read(ctx, "PersistentVolume", "", name, pv)
	if found {
		now.volume = pv
	}
	return now, err
}

// podStillPending ends the wait when the pod is gone, replaced or bound.
func podStillPending(ctx context.Context, pod *corev1.Pod, read reader) error {
	about := framework.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
	now := &corev1.Pod{}
	found, err := read(ctx, "Pod", pod.Namespace, pod.Name, now)
	switch {
	case err != nil:
		return err
	case !found || now.UID != pod.UID:
		return framework.Stale(about, "the pod was deleted while its volumes were being bound")
	case now.DeletionTimestamp != nil:
		return framework.Stale(about, "the pod is being deleted")
	case now.Spec.NodeName != "":
		return framework.Stale(about, "the pod was bound to %s meanwhile", now.Spec.NodeName)
	}
	return nil
}

// nodeNow returns the node as it is now, for its labels may have changed.
func nodeNow(ctx context.Context, name string, read reader) (*corev1.Node, error) {
	node := &corev1.Node{}
	found, err := read(ctx, "Node", "", name, node)
	if err == nil && !found {
		err = framework.Refuse(framework.Object{Kind: "Node", Name: name}, "the node was deleted while volumes were being bound for it").
			Advise("choose another")
	}
	return node, err
}
