// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/api"
)

// survey is what is found of all claims of a pod.
type survey struct {
	// unmade are those of templates that have not been made yet.
	unmade []reference
	claims []judgement
	pod    *corev1.Pod
}

// survey judges the pod's claims by the cache, or by what this attempt has written
// since; whatever would end the bind is judged once more by the API server.
func (p *Plugin) survey(ctx context.Context, bc *api.BindContext, pod *corev1.Pod, written map[client.ObjectKey]*resourcev1.ResourceClaim) (survey, error) {
	s := survey{pod: pod}
	refs, err := references(pod)
	if err != nil {
		return s, err
	}
	for _, ref := range refs {
		if ref.claim == "" {
			s.unmade = append(s.unmade, ref)
			continue
		}
		j, err := p.look(ctx, bc, pod, ref, written)
		if err != nil {
			return s, err
		}
		s.claims = append(s.claims, j)
	}
	return s, nil
}

// look judges one claim.
func (p *Plugin) look(ctx context.Context, bc *api.BindContext, pod *corev1.Pod, ref reference, written map[client.ObjectKey]*resourcev1.ResourceClaim) (judgement, error) {
	key := client.ObjectKey{Namespace: pod.Namespace, Name: ref.claim}
	claim := &resourcev1.ResourceClaim{}
	if err := p.o.Cached.Get(ctx, key, claim); err != nil {
		claim = nil
	}
	if own := written[key]; own != nil && (claim == nil || newer(own, claim)) {
		claim = own
	}
	if claim != nil {
		j, err := p.decide(ctx, bc, pod, ref, claim)
		if err == nil && j.state != unallocated {
			return j, nil
		}
	}
	live, err := p.read(ctx, key)
	if err != nil {
		return judgement{}, err
	}
	return p.decide(ctx, bc, pod, ref, live)
}

func (p *Plugin) decide(ctx context.Context, bc *api.BindContext, pod *corev1.Pod, ref reference, claim *resourcev1.ResourceClaim) (judgement, error) {
	j, err := judge(pod, bc.Node, ref, claim, p.o.BindingTimeout, p.o.Clock.Now())
	if err != nil || j.state != unallocated {
		return j, err
	}
	about := claimObject(claim.Namespace, claim.Name)
	if ref.extended {
		return j, api.Refuse(about, "the claim stands for extended resources and has no devices, which only the scheduler allocates that made it").
			Advise("see why the scheduler did not allocate it")
	}
	if p.o.Allocator == nil {
		return j, api.Refuse(about, "the claim has no devices: the scheduler has not allocated it").
			Advise("use a scheduler that knows ResourceClaims, or let Prebind allocate its DeviceClass by --resource-claims-allocate")
	}
	if err := p.o.Allocator.Owns(ctx, claim); err != nil {
		return j, api.Refuse(about, "the claim has no devices, and Prebind may not allocate it: %v", err).Because(err).
			Advise("use a scheduler that knows ResourceClaims, or let Prebind allocate its DeviceClass by --resource-claims-allocate")
	}
	return j, nil
}

// read returns the claim as the API server has it.
func (p *Plugin) read(ctx context.Context, key client.ObjectKey) (*resourcev1.ResourceClaim, error) {
	claim := &resourcev1.ResourceClaim{}
	err := p.o.Live.Get(ctx, key, claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil, api.Refuse(claimObject(key.Namespace, key.Name), "the claim does not exist").Because(err).Advise("create it, or correct the pod")
	case err != nil:
		return nil, api.FromAPI(claimObject(key.Namespace, key.Name), "reading it", err)
	}
	return claim, nil
}

// newer says whether a is a later version of the claim than b.
func newer(a, b *resourcev1.ResourceClaim) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return a.UID == b.UID && err == nil && order > 0
}

// pendingPod is the pod as it is now: its claims may have been made meanwhile.
func (p *Plugin) pendingPod(ctx context.Context, bc *api.BindContext) (*corev1.Pod, error) {
	key := client.ObjectKeyFromObject(bc.Pod)
	pod := &corev1.Pod{}
	if err := p.o.Cached.Get(ctx, key, pod); err == nil && pod.UID == bc.Pod.UID {
		return pod, nil
	}
	pod = &corev1.Pod{}
	err := p.o.Live.Get(ctx, key, pod)
	switch {
	case apierrors.IsNotFound(err), err == nil && pod.UID != bc.Pod.UID:
		return nil, api.Stale(podObject(bc.Pod), "the pod is gone").Advise("forget this bind")
	case err != nil:
		return nil, api.FromAPI(podObject(bc.Pod), "reading it", err)
	}
	return pod, nil
}

// done says that nothing is left to do or to wait for.
func (s survey) done() bool {
	for _, j := range s.claims {
		if j.state != ready {
			return false
		}
	}
	return len(s.unmade) == 0
}

// in returns the claims in this state.
func (s survey) in(wanted state) []judgement {
	var found []judgement
	for _, j := range s.claims {
		if j.state == wanted {
			found = append(found, j)
		}
	}
	return found
}

// waitsFor is the first thing that is waited for, in plain words.
func (s survey) waitsFor() (api.Object, string) {
	for _, ref := range s.unmade {
		return podObject(s.pod), ref.missing()
	}
	for _, j := range s.claims {
		if j.state != ready {
			return claimObject(j.claim.Namespace, j.claim.Name), j.waits
		}
	}
	return api.Object{}, ""
}

// until is when the first claim is given up; the zero time for never.
func (s survey) until() time.Time {
	var first time.Time
	for _, j := range s.in(unready) {
		if !j.until.IsZero() && (first.IsZero() || j.until.Before(first)) {
			first = j.until
		}
	}
	return first
}

// intents are what PreBind would do.
func (s survey) intents(node string) []string {
	var all []string
	for _, ref := range s.unmade {
		all = append(all, "wait for "+ref.missing())
	}
	for _, j := range s.claims {
		about := claimObject(j.claim.Namespace, j.claim.Name)
		switch j.state {
		case unallocated:
			all = append(all, fmt.Sprintf("allocate devices of Node %s for %s, and reserve it for the pod", node, about))
		case unreserved:
			all = append(all, fmt.Sprintf("reserve %s for the pod", about))
		case unready:
			all = append(all, "wait for "+j.waits)
		case ready:
		}
	}
	return all
}
