// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package startlimit is the PreBind plugin that limits how many pods start on a node at the same
// time. A bind that exceeds the limit waits for a slot. A circuit breaker rejects nodes whose
// kubelet refuses the pods of a namespace.
//
// A pod starts from its bind until it leaves the phase Pending. The cache holds only these pods, in
// a compact form. A bind reserves its slot in the memory of the replica (slots.go) until the cache
// contains the pod. Therefore the limit is exact for the binds of one replica. Other replicas
// observe the pod only after its bind. So that they exceed the limit by little, each replica
// reserves only its share of the free slots; see rules.share.
package startlimit

import (
	"context"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/prebind/prebind/binder/framework"
)

// observeTime is how long a reservation is kept after a bind if the watch does not report the
// pod. The pod can have left the phase Pending during an interruption of the watch. It is also how
// long the reservation of Take is kept, because an allowed bind can fail.
const observeTime = framework.BindSettles

const (
	// maxTries is how often take lists the pods if the view is outdated after each list.
	maxTries = 3
	// retryTime is the time after which a waiting bind then tries again.
	retryTime = time.Second
)

// Plugin limits starts. It is safe for concurrent use.
type Plugin struct {
	h       framework.Handle
	rules   rules
	wait    time.Duration
	slots   *slots
	refused *breakers
	pods    framework.Selection
}

var (
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.PreFlighter         = (*Plugin)(nil)
	_ framework.Taker               = (*Plugin)(nil)
	_ framework.RollBacker          = (*Plugin)(nil)
	_ framework.PostBinder          = (*Plugin)(nil)
)

func newPlugin(h framework.Handle, a *Arguments, held *slots, refused *breakers) *Plugin {
	p := &Plugin{
		h: h, rules: rules{limit: a.Limit, timeout: a.StartTimeout}, wait: a.Wait,
		slots: held, refused: refused, pods: onNodes("starting", corev1.PodPending),
	}
	if p.h.Replicas == nil {
		p.h.Replicas = func() int { return 1 }
	}
	held.connect(func(node string) { h.Changes.Changed(p.pods.Changed(node)) }, p.h.Replicas)
	p.h.Replicas() // The first call begins the observation of the replicas.
	refused.apply(limits{refusals: a.BreakerRefusals, window: a.BreakerWindow, open: a.BreakerOpen}, h.Clock, h.Events)
	return p
}

// breaker returns the state of the circuit breaker, and the end of this state.
func (p *Plugin) breaker(bc *framework.BindContext, now time.Time) (phase, time.Time) {
	return p.refused.at(bc.Pod.Namespace, bc.Node.Name, now)
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

// sight is the state of the node for one bind.
type sight struct {
	// others are the pods that start, and the reservations, without those of the bind itself. reserved
	// means that the bind has a slot. queued is the number of binds that wait.
	others   []starting
	reserved bool
	queued   int
	phase    phase
	until    time.Time
}

var sightKey = framework.NewExtensionKey[sight](Name)

// SetupBindContextExtension implements framework.BindContextExtender.
func (p *Plugin) SetupBindContextExtension(ctx context.Context, reader framework.Reader, bc *framework.BindContext) error {
	var s sight
	if !isExempt(bc.Pod) {
		v, err := p.list(ctx, reader, bc)
		if err != nil {
			return err
		}
		reserved, queued := p.slots.on(bc.Node.Name)
		isOwn := func(other starting) bool { return other.uid == bc.Pod.UID }
		s.reserved, s.queued = slices.ContainsFunc(p.rules.merge(nil, reserved, bc.Now), isOwn), queued
		s.others = slices.DeleteFunc(p.rules.merge(v.pods, reserved, bc.Now), isOwn)
		s.phase, s.until = p.breaker(bc, bc.Now)
	}
	sightKey.Set(bc, s)
	return nil
}

// list returns the pods that start on the node.
func (p *Plugin) list(ctx context.Context, reader framework.Reader, bc *framework.BindContext) (view, error) {
	v := view{seen: p.slots.observations()}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, p.pods.Where(bc.Node.Name)); err != nil {
		return v, framework.FromAPI(about(bc), "listing the pods that start on it", err)
	}
	v.pods = pods.Items
	return v, nil
}

// take lists the pods, and reserves a slot if there is one. The answer is outdated if the cache received pods
// during each list.
func (p *Plugin) take(ctx context.Context, reader framework.Reader, bc *framework.BindContext, t *ticket, now time.Time, alone bool) (answer, error) {
	bind := starting{namespace: bc.Pod.Namespace, uid: bc.Pod.UID, since: now, attempt: bc.Attempt}
	a, r := answer{outdated: true}, p.rules
	r.replicas = p.h.Replicas()
	for try := 0; a.outdated && try < maxTries; try++ {
		v, err := p.list(ctx, reader, bc)
		if err != nil {
			return answer{}, err
		}
		a = p.slots.take(bc.Node.Name, bind, t, v, r, alone)
	}
	return a, nil
}

// PreFlight rejects the bind if the circuit breaker is open, and skips it if the pod needs no slot.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	s, err := sightKey.Get(bc)
	if err != nil {
		return framework.Run, err
	}
	busy := slices.ContainsFunc(s.others, func(other starting) bool { return other.namespace == bc.Pod.Namespace })
	switch {
	case isExempt(bc.Pod):
		return framework.Skip, nil
	case s.phase == open, s.phase == trying && busy:
		return framework.Run, rejected(bc, s.phase, s.until)
	case s.reserved:
		return framework.Take, nil
	case len(s.others)+s.queued >= p.rules.limit:
		w := waiting(bc, p.rules.limit)
		bc.Intend("%s would wait up to %s for %s", Name, p.wait, w.For)
		bc.ExpectWait(w)
		return framework.Run, nil
	case s.phase == trying:
		return framework.Run, nil
	default:
		return framework.Take, nil
	}
}

// Take reserves a slot if the bind does not have to wait. If the pod is not bound, the reservation ends
// after a while.
func (p *Plugin) Take(ctx context.Context, bc *framework.BindContext) bool {
	a, err := p.take(ctx, p.h.Cached, bc, nil, p.h.Clock.Now(), false)
	if err != nil || !a.taken {
		return false
	}
	p.PostBind(ctx, bc)
	return true
}

// PreBind waits for a slot and reserves it. Binds get slots in the order of their arrival, while their client is not away: the
// slot of a client that calls another replica next would be lost for framework.BindSettles.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	t := p.slots.enter(bc.Node.Name)
	defer p.slots.leave(t)
	since := p.h.Clock.Now()
	return framework.Await(ctx, p.h, bc, func(ctx context.Context, reader framework.Reader) (framework.Waiting, error) {
		at := &framework.BindContext{Now: p.h.Clock.Now(), Since: since}
		state, until := p.breaker(bc, at.Now)
		if state == open {
			return framework.Waiting{}, rejected(bc, state, until)
		}
		w := waiting(bc, p.rules.limit)
		w.Turn = true
		p.slots.attend(t, bc.Away(), p.rules.limit)
		if p.slots.canTake(t, bc.Pod.UID, p.rules.limit) {
			a, err := p.take(ctx, reader, bc, t, at.Now, state == trying)
			switch {
			case err != nil:
				return framework.Waiting{}, err
			case a.taken:
				return framework.Waiting{}, nil
			case a.busy:
				return framework.Waiting{}, rejected(bc, state, until)
			case a.outdated:
				w.Until = at.Now.Add(retryTime)
			default:
				w.Until = a.next
			}
		}
		return at.WaitAtMost(p.wait, w)
	}, p.pods.Changed(bc.Node.Name), bc.Calls())
}

// PreBindRollBack releases the slot.
func (p *Plugin) PreBindRollBack(_ context.Context, bc *framework.BindContext) error {
	if p.slots.release(bc.Node.Name, bc.Pod.UID, bc.Attempt) {
		bc.Undid("released the slot on the node")
	}
	return nil
}

// PostBind releases the slot if the watch does not report the pod in time.
func (p *Plugin) PostBind(_ context.Context, bc *framework.BindContext) {
	// The timer does not keep the pod in memory.
	node, uid := bc.Node.Name, bc.Pod.UID
	if number := p.slots.number(node, uid, bc.Attempt); number > 0 {
		p.h.Clock.AfterFunc(observeTime, func() { p.slots.expire(node, uid, number) })
	}
}

func about(bc *framework.BindContext) framework.Object {
	return framework.Object{Kind: "Node", Name: bc.Node.Name}
}

func waiting(bc *framework.BindContext, limit int) framework.Waiting {
	return framework.Waiting{Object: about(bc), For: "pods on the node to start (limit " + strconv.Itoa(limit) + ")"}
}

// rejected returns the error of a circuit breaker that is not closed.
func rejected(bc *framework.BindContext, state phase, until time.Time) *framework.Error {
	if state == trying {
		return framework.Refuse(about(bc), "the kubelet refused pods of the namespace %s, and another one tries the node now", bc.Pod.Namespace).
			Advise("choose another node")
	}
	return framework.Refuse(about(bc), "the kubelet refused pods of the namespace %s; no pod of the namespace is bound to the node before %s",
		bc.Pod.Namespace, until.UTC().Format(time.RFC3339)).Advise("choose another node, and check the events of the node")
}
