// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// untilReady does for the pod's claims what can be done, and waits for the rest.
func (p *Plugin) untilReady(ctx context.Context, bc *framework.BindContext) error {
	began := p.o.Clock.Now()
	changes := p.o.Changes.Subscribe(framework.RefTo(&corev1.Pod{}, bc.Pod.Namespace, bc.Pod.Name))
	defer changes.Close()
	for {
		pod, err := p.pendingPod(ctx, bc)
		if err != nil {
			return err
		}
		refs, err := references(pod)
		if err != nil {
			return err
		}
		// Subscribed to first, looked at then: no change falls in between.
		for _, ref := range refs {
			if ref.claim != "" {
				changes.Add(framework.RefTo(&resourcev1.ResourceClaim{}, pod.Namespace, ref.claim))
			}
		}
		s, err := p.survey(ctx, bc, pod, began)
		if err != nil {
			return err
		}
		if acted, err := p.advance(ctx, bc, s, began); err != nil {
			return err
		} else if acted {
			continue
		}
		if s.done() {
			return nil
		}
		about, what := s.waitsFor()
		bc.Waiting(framework.Waiting{Object: about, For: what})
		if err := p.sleep(ctx, changes, s.until()); err != nil {
			return err
		}
	}
}

// advance allocates and reserves what can be, once all claims have been made:
// nothing is taken for a pod that may have to wait for long. It says whether there
// was anything, so that another look is due.
func (p *Plugin) advance(ctx context.Context, bc *framework.BindContext, s survey, began time.Time) (bool, error) {
	if len(s.unmade) > 0 {
		return false, nil
	}
	v := view{pod: s.pod, node: s.node, within: period{timeout: p.o.BindingTimeout, began: began, now: p.o.Clock.Now()}}
	allocate, reserve := s.in(unallocated), s.in(unreserved, borrowed)
	for _, j := range allocate {
		if err := p.allocate(ctx, bc, v, j); err != nil {
			return true, err
		}
	}
	for _, j := range reserve {
		if err := p.reserve(ctx, bc, v, j); err != nil {
			return true, err
		}
	}
	return len(allocate)+len(reserve) > 0, nil
}

// allocate has the claim allocated and reserved. Where it turns out to be something
// else than the survey saw, the next one judges it.
func (p *Plugin) allocate(ctx context.Context, bc *framework.BindContext, v view, seen judgement) error {
	marked, err := p.putMark(ctx, bc, seen.claim)
	if err != nil {
		return err
	}
	if j, err := p.decide(ctx, bc, v, seen.ref, marked); err != nil || j.state != unallocated {
		return err
	}
	allocated, err := p.o.Allocator.Allocate(ctx, bc, marked)
	if err != nil {
		return err
	}
	remember(bc, client.ObjectKeyFromObject(marked), allocated)
	return nil
}

// sleep waits for a change, or until the time, if there is one.
func (p *Plugin) sleep(ctx context.Context, changes *framework.Subscription, until time.Time) error {
	var over <-chan time.Time
	if !until.IsZero() {
		timer := p.o.Clock.NewTimer(until.Sub(p.o.Clock.Now()))
		defer timer.Stop()
		over = timer.C()
	}
	select {
	case <-changes.C():
		return nil
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
