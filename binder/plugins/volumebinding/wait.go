// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/api"
	"github.com/prebind/prebind/binder/notify"
)

// wait returns when every claim of the plan is bound, or with the error that
// makes it impossible. It looks when something changed, and only then.
func (p *Plugin) wait(ctx context.Context, bc *api.BindContext, pl plan) error {
	changes := p.changes.Subscribe(
		notify.Key{Kind: "Pod", Namespace: bc.Pod.Namespace, Name: bc.Pod.Name},
		notify.Key{Kind: "Node", Name: bc.Node.Name},
	)
	defer changes.Close()
	for _, m := range pl.static {
		changes.Add(claimKey(m.claim), volumeKey(m.volume.Name))
	}
	for _, claim := range pl.dynamic {
		changes.Add(claimKey(claim))
	}
	for {
		done, err := p.look(ctx, bc, pl, changes)
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changes.C():
		}
	}
}

// look judges the present state once.
func (p *Plugin) look(ctx context.Context, bc *api.BindContext, pl plan, changes *notify.Subscription) (bool, error) {
	if err := p.podStillPending(ctx, bc.Pod); err != nil {
		return false, err
	}
	node, err := p.nodeNow(ctx, bc.Node.Name)
	if err != nil {
		return false, err
	}
	for _, m := range pl.static {
		now, err := p.observe(ctx, m.claim, m.volume.Name, changes)
		if err != nil {
			return false, err
		}
		at, err := staticStep(m, now, node)
		if err != nil || !at.bound {
			bc.Waiting(at.waiting)
			return false, err
		}
	}
	for _, claim := range pl.dynamic {
		now, err := p.observe(ctx, claim, "", changes)
		if err != nil {
			return false, err
		}
		at, err := dynamicStep(claim, now, node)
		if err != nil || !at.bound {
			bc.Waiting(at.waiting)
			return false, err
		}
	}
	return true, nil
}

// observe reads a claim, and the volume of this name or else the one that the
// claim names.
func (p *Plugin) observe(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string, changes *notify.Subscription) (observed, error) {
	now := observed{claim: &corev1.PersistentVolumeClaim{}}
	found, err := p.read(ctx, "PersistentVolumeClaim", claim.Namespace, claim.Name, now.claim)
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
	found, err = p.read(ctx, "PersistentVolume", "", name, pv)
	if found {
		now.volume = pv
	}
	return now, err
}

// podStillPending ends the wait when the pod is gone, replaced or bound. The
// cache holds pending pods only, so what it lacks is asked of the API server.
func (p *Plugin) podStillPending(ctx context.Context, pod *corev1.Pod) error {
	about := api.Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name}
	now := &corev1.Pod{}
	found, err := p.read(ctx, "Pod", pod.Namespace, pod.Name, now)
	switch {
	case err != nil:
		return err
	case !found || now.UID != pod.UID:
		return api.Stale(about, "the pod was deleted while its volumes were being bound")
	case now.DeletionTimestamp != nil:
		return api.Stale(about, "the pod is being deleted")
	case now.Spec.NodeName != "":
		return api.Stale(about, "the pod was bound to %s meanwhile", now.Spec.NodeName)
	}
	return nil
}

// nodeNow returns the node as it is now, for its labels may have changed.
func (p *Plugin) nodeNow(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	found, err := p.read(ctx, "Node", "", name, node)
	if err == nil && !found {
		err = api.Refuse(api.Object{Kind: "Node", Name: name}, "the node was deleted while volumes were being bound for it").
			Advise("choose another")
	}
	return node, err
}
