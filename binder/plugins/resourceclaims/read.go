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

	"github.com/prebind/prebind/binder/framework"
)

// survey is what is found of all claims of a pod.
type survey struct {
	// unmade are those of templates that have not been made yet.
	unmade []reference
	claims []judgement
	// pod and node are those that were looked at.
	pod  *corev1.Pod
	node *corev1.Node
}

// view is what a survey goes by.
type view struct {
	pod  *corev1.Pod
	node *corev1.Node
	// claim returns one of the pod's claims.
	claim  func(key client.ObjectKey) (*resourcev1.ResourceClaim, error)
	within period
}

// survey judges the pod's claims by the cache, and by what this attempt has written
// since. Whatever would end the bind, and a claim that nobody has allocated, is
// judged by the API server. The pod is the one of the cache, as is the bind's node;
// began is when the bind began to wait.
func (p *Plugin) survey(ctx context.Context, bc *framework.BindContext, pod *corev1.Pod, began time.Time) (survey, error) {
	own := writtenBy(bc)
	v := view{pod: pod, node: bc.Node, within: period{timeout: p.o.BindingTimeout, began: began, now: p.o.Clock.Now()}}
	v.claim = func(key client.ObjectKey) (*resourcev1.ResourceClaim, error) {
		claim := &resourcev1.ResourceClaim{}
		if err := p.o.Cached.Get(ctx, key, claim, client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
		if written := own[key]; written != nil && newer(written, claim) {
			return written, nil
		}
		return claim, nil
	}
	s, err := p.surveyBy(ctx, bc, v)
	if err == nil && len(s.in(unallocated)) == 0 {
		return s, nil
	}
	return p.surveyLive(ctx, bc, v.within)
}

// surveyLive judges the pod's claims by the API server alone.
func (p *Plugin) surveyLive(ctx context.Context, bc *framework.BindContext, within period) (survey, error) {
	pod, err := p.livePod(ctx, bc)
	if err != nil {
		return survey{}, err
	}
	node, err := p.liveNode(ctx, bc)
	if err != nil {
		return survey{}, err
	}
	return p.surveyBy(ctx, bc, view{pod: pod, node: node, within: within, claim: func(key client.ObjectKey) (*resourcev1.ResourceClaim, error) {
		return p.read(ctx, key)
	}})
}

// surveySurely is survey, but that the API server has the last word on whatever is
// not done: the cache may be behind what a scheduler wrote just before it binds, and
// the bind has nothing to wait for then.
func (p *Plugin) surveySurely(ctx context.Context, bc *framework.BindContext, pod *corev1.Pod) (survey, error) {
	now := p.o.Clock.Now()
	s, err := p.survey(ctx, bc, pod, now)
	if err != nil || s.done() {
		return s, err
	}
	return p.surveyLive(ctx, bc, period{timeout: p.o.BindingTimeout, began: now, now: now})
}

func (p *Plugin) surveyBy(ctx context.Context, bc *framework.BindContext, v view) (survey, error) {
	s := survey{pod: v.pod, node: v.node}
	refs, err := references(v.pod)
	if err != nil {
		return s, err
	}
	for _, ref := range refs {
		if ref.claim == "" {
			s.unmade = append(s.unmade, ref)
			continue
		}
		claim, err := v.claim(client.ObjectKey{Namespace: v.pod.Namespace, Name: ref.claim})
		if err != nil {
			return s, err
		}
		j, err := p.decide(ctx, bc, v, ref, claim)
		if err != nil {
			return s, err
		}
		s.claims = append(s.claims, j)
	}
	return s, nil
}

// decide judges one claim, as judge does, and adds whether Prebind may allocate it,
// and whose its reservation is.
func (p *Plugin) decide(ctx context.Context, bc *framework.BindContext, v view, ref reference, claim *resourcev1.ResourceClaim) (judgement, error) {
	j, err := judge(v.pod, v.node, ref, claim, v.within)
	if err != nil {
		return j, err
	}
	switch j.state {
	case unallocated:
		return j, p.allocatable(ctx, v.pod, ref, claim)
	case unready, ready:
		if p.markOn(bc, claim) == "" && reservedFor(claim, bc.Pod.UID) && markedByOthers(claim, p.o.Domain, bc.Pod.UID, bc.Attempt) {
			j.state = borrowed
		}
	case unreserved, borrowed:
	}
	return j, nil
}

// allocatable says why Prebind may not allocate the claim, or nil.
func (p *Plugin) allocatable(ctx context.Context, pod *corev1.Pod, ref reference, claim *resourcev1.ResourceClaim) error {
	about := claimObject(claim.Namespace, claim.Name)
	switch {
	case ref.extended:
		return framework.Refuse(about, "the claim stands for extended resources and has no devices, which only the scheduler allocates that made it").
			Advise("see why the scheduler did not allocate it")
	case ref.ofPodGroup(pod, claim):
		return framework.Refuse(about, "the claim is the PodGroup's and has no devices, which only a scheduler allocates that knows PodGroups").
			Advise("see why the scheduler did not allocate it")
	case p.o.Allocator == nil:
		return framework.Refuse(about, "the claim has no devices: the scheduler has not allocated it").
			Advise("use a scheduler that knows ResourceClaims, or let Prebind allocate its DeviceClass by --resource-claims-allocate")
	}
	if err := p.o.Allocator.Owns(ctx, claim); err != nil {
		return framework.Refuse(about, "the claim has no devices, and Prebind may not allocate it: %v", err).Because(err).
			Advise("use a scheduler that knows ResourceClaims, or let Prebind allocate its DeviceClass by --resource-claims-allocate")
	}
	return nil
}

// read returns the claim as the API server has it.
func (p *Plugin) read(ctx context.Context, key client.ObjectKey) (*resourcev1.ResourceClaim, error) {
	claim := &resourcev1.ResourceClaim{}
	err := p.o.Live.Get(ctx, key, claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil, framework.Refuse(claimObject(key.Namespace, key.Name), "the claim does not exist").Because(err).Advise("create it, or correct the pod")
	case err != nil:
		return nil, framework.FromAPI(claimObject(key.Namespace, key.Name), "reading it", err)
	}
	return claim, nil
}

// newer says whether a is a later version of the claim than b.
func newer(a, b *resourcev1.ResourceClaim) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return a.UID == b.UID && err == nil && order > 0
}

// pendingPod is the pod as it is now: its claims may have been made meanwhile.
func (p *Plugin) pendingPod(ctx context.Context, bc *framework.BindContext) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := p.o.Cached.Get(ctx, client.ObjectKeyFromObject(bc.Pod), pod)
	if err == nil && pod.UID == bc.Pod.UID && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
		return pod, nil
	}
	return p.livePod(ctx, bc)
}

// podAsItIs is the pod as the API server has it, or nil when it is gone.
func (p *Plugin) podAsItIs(ctx context.Context, bc *framework.BindContext) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := p.o.Live.Get(ctx, client.ObjectKeyFromObject(bc.Pod), pod)
	switch {
	case apierrors.IsNotFound(err), err == nil && pod.UID != bc.Pod.UID:
		return nil, nil
	case err != nil:
		return nil, framework.FromAPI(podObject(bc.Pod), "reading it", err)
	}
	return pod, nil
}

// livePod is the pod as the API server has it, while it can be bound.
func (p *Plugin) livePod(ctx context.Context, bc *framework.BindContext) (*corev1.Pod, error) {
	pod, err := p.podAsItIs(ctx, bc)
	switch {
	case err != nil:
		return nil, err
	case pod == nil:
		return nil, framework.Stale(podObject(bc.Pod), "the pod is gone").Advise("forget this bind")
	case pod.DeletionTimestamp != nil:
		return nil, framework.Stale(podObject(bc.Pod), "the pod is being deleted").Advise("forget this bind")
	case pod.Spec.NodeName != "":
		return nil, framework.Stale(podObject(bc.Pod), "the pod is bound to the node %s already", pod.Spec.NodeName).Advise("forget this bind")
	}
	return pod, nil
}

func (p *Plugin) liveNode(ctx context.Context, bc *framework.BindContext) (*corev1.Node, error) {
	about := framework.Object{Kind: "Node", Name: bc.Node.Name}
	node := &corev1.Node{}
	err := p.o.Live.Get(ctx, client.ObjectKey{Name: bc.Node.Name}, node)
	switch {
	case apierrors.IsNotFound(err):
		return nil, framework.Refuse(about, "the node is gone").Because(err).Advise("choose another")
	case err != nil:
		return nil, framework.FromAPI(about, "reading it", err)
	}
	return node, nil
}

// done says that nothing is left to do or to wait for.
func (s survey) done() bool { return len(s.unmade) == 0 && len(s.in(ready)) == len(s.claims) }

// in returns the claims in one of these states.
func (s survey) in(wanted ...state) []judgement {
	var found []judgement
	for _, j := range s.claims {
		for _, state := range wanted {
			if j.state == state {
				found = append(found, j)
			}
		}
	}
	return found
}

// waitsFor is the first thing that is waited for, in plain words.
func (s survey) waitsFor() (framework.Object, string) {
	for _, ref := range s.unmade {
		return podObject(s.pod), ref.missing()
	}
	for _, j := range s.claims {
		if j.state != ready {
			return claimObject(j.claim.Namespace, j.claim.Name), j.waits
		}
	}
	return framework.Object{}, ""
}

// waits are all that has to be waited for, reservations aside.
func (s survey) waits() []framework.Waiting {
	var all []framework.Waiting
	for _, ref := range s.unmade {
		all = append(all, framework.Waiting{Object: podObject(s.pod), For: ref.missing()})
	}
	for _, j := range s.in(unready) {
		all = append(all, framework.Waiting{Object: claimObject(j.claim.Namespace, j.claim.Name), For: j.waits})
	}
	return all
}

// until is when the first claim is given up; the zero time for never.
func (s survey) until() time.Time {
	var first time.Time
	for _, j := range s.in(unready) {
		if first.IsZero() || j.until.Before(first) {
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
		case unreserved, borrowed:
			all = append(all, fmt.Sprintf("reserve %s for the pod", about))
		case unready:
			all = append(all, "wait for "+j.waits)
		case ready:
		}
	}
	return all
}
