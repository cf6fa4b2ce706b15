// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
	"github.com/prebind/prebind/binder/notify"
)

// untilReady does for the pod's claims what can be done, and waits for the rest.
func (p *Plugin) untilReady(ctx context.Context, bc *api.BindContext) error {
	changes := p.o.Changes.Subscribe(notify.Key{Kind: "Pod", Namespace: bc.Pod.Namespace, Name: bc.Pod.Name})
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
				changes.Add(notify.Key{Kind: "ResourceClaim", Namespace: pod.Namespace, Name: ref.claim})
			}
		}
		s, err := p.survey(ctx, bc, pod, writtenBy(bc))
		if err != nil {
			return err
		}
		if wrote, err := p.advance(ctx, bc, s); err != nil {
			return err
		} else if wrote {
			continue
		}
		if s.done() {
			return nil
		}
		about, what := s.waitsFor()
		bc.Waiting(api.Waiting{Object: about, For: what})
		if err := p.sleep(ctx, changes, s.until()); err != nil {
			return err
		}
	}
}

// advance allocates and reserves what can be, once all claims have been made:
// nothing is taken for a pod that may have to wait for long. It says whether it
// wrote anything.
func (p *Plugin) advance(ctx context.Context, bc *api.BindContext, s survey) (bool, error) {
	if len(s.unmade) > 0 {
		return false, nil
	}
	wrote := false
	for _, step := range []struct {
		of state
		do func(context.Context, *api.BindContext, *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
	}{{unallocated, p.allocate}, {unreserved, p.reserve}} {
		for _, j := range s.in(step.of) {
			if _, err := step.do(ctx, bc, j.claim); err != nil {
				return wrote, err
			}
			wrote = true
		}
	}
	return wrote, nil
}

// allocate has the claim allocated and reserved; survey has seen that it may be.
func (p *Plugin) allocate(ctx context.Context, bc *api.BindContext, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	marked, err := p.putMark(ctx, bc, claim, mark{Pod: bc.Pod.Name, Node: bc.Node.Name, Allocated: true})
	if err != nil {
		return nil, err
	}
	if marked.Status.Allocation != nil {
		// The next survey judges it as it is now.
		return marked, nil
	}
	allocated, err := p.o.Allocator.Allocate(ctx, bc, marked)
	if err != nil {
		return nil, err
	}
	remember(bc, client.ObjectKeyFromObject(claim), allocated)
	return allocated, nil
}

// sleep waits for a change, or until the time, if there is one.
func (p *Plugin) sleep(ctx context.Context, changes *notify.Subscription, until time.Time) error {
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
