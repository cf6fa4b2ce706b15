// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package startlimit is the PreBind plugin that limits how many pods start on a node at the same
// time. A bind that exceeds the limit waits for a slot. A circuit breaker rejects nodes whose
// kubelet refuses the pods of a namespace.
//
// A pod starts from its bind until it leaves the phase Pending. The cache holds only these pods, in
// a compact form. A bind reserves its slot in the memory of the replica (slots.go) when all other
// plugins are ready, until the cache contains the pod. Therefore the limit is exact for the binds of one
// replica. Other replicas observe the pod only after its bind. So that they exceed the limit by little, each
// replica reserves only its share of the free slots; see rules.share.
//
// Binds that wait get free slots in any order. If an allowed bind fails, its slot is lost for observeTime.
package startlimit

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/framework"
)

// observeTime is how long a reservation is kept if the watch does not report the
// pod. The pod can have left the phase Pending during an interruption of the watch, or its bind can have failed.
const observeTime = framework.BindSettles

// Plugin limits starts. It is safe for concurrent use.
type Plugin struct {
	h       framework.Handle
	rules   rules
	wait    time.Duration
	slots   *slots
	refused *breakers
}

var (
	_ framework.BindContextExtender = (*Plugin)(nil)
	_ framework.Plugin              = (*Plugin)(nil)
	_ framework.Reserver            = (*Plugin)(nil)
)

func newPlugin(h framework.Handle, a *Arguments, held *slots, refused *breakers) *Plugin {
	p := &Plugin{h: h, rules: rules{limit: a.Limit, timeout: a.StartTimeout.Duration}, wait: a.Wait.Duration, slots: held, refused: refused}
	if p.h.Replicas == nil {
		p.h.Replicas = func() int { return 1 }
	}
	// Every bind to the node wakes up when its slots change.
	held.connect(h.Clock, func(node string) { h.Wake(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}) }, p.h.Replicas)
	p.h.Replicas() // The first call begins the observation of the replicas.
	refused.apply(limits{refusals: a.BreakerRefusals, window: a.BreakerWindow.Duration, open: a.BreakerOpen.Duration}, h.Clock, h.Events)
	return p
}

// Name implements framework.Plugin.
func (*Plugin) Name() string { return Name }

// seen is what the plugin sees of the node.
type seen struct {
	sight
	rules rules
	phase phase
	until time.Time
}

// shared returns the rules for the present number of replicas.
func (p *Plugin) shared() rules {
	r := p.rules
	r.replicas = p.h.Replicas()
	return r
}

// SetupBindContextExtension implements framework.BindContextExtender. The handlers of the watches have read the pods.
func (p *Plugin) SetupBindContextExtension(_ context.Context, _ framework.Reader, bc *framework.BindContext) error {
	s := seen{rules: p.shared()}
	s.sight = p.slots.sight(bc.Node.Name, bc.Pod.Namespace, bc.Pod.UID, s.rules, bc.Now)
	s.phase, s.until = p.refused.at(bc.Pod.Namespace, bc.Node.Name, bc.Now)
	framework.Extend(bc, s)
	return nil
}

// PreFlight rejects the bind if the circuit breaker is open, and waits for a slot if the pod needs one.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	s, err := framework.Extension[seen](bc)
	if err != nil {
		return framework.Verdict{}, err
	}
	switch {
	case isExempt(bc.Pod):
		return framework.Verdict{}, nil
	case s.phase == open, s.phase == trying && s.busy:
		return framework.Verdict{}, rejected(bc, s.phase, s.until)
	case s.own:
		return framework.Verdict{}, nil
	case s.rules.fits(s.sight):
		return framework.Verdict{Late: true, Writes: []string{"reserve a slot on the node"}}, nil
	}
	until := s.next
	if s.rules.replicas == 0 {
		until = bc.Now.Add(time.Second) // The number of replicas is known soon.
	}
	wait, err := bc.AtMost(p.wait, framework.Wait{
		Object: about(bc), For: "pods on the node to start (limit " + strconv.Itoa(p.rules.limit) + ")", Until: until,
	})
	return framework.Verdict{Wait: wait}, err
}

// Reserve implements framework.Reserver.
func (p *Plugin) Reserve(bc *framework.BindContext) bool {
	state, _ := p.refused.at(bc.Pod.Namespace, bc.Node.Name, bc.Now)
	return state != open && p.slots.reserve(bc.Node.Name, bc.Pod.Namespace, bc.Pod.UID, p.shared(), state == trying)
}

func about(bc *framework.BindContext) framework.Object {
	return framework.Object{Kind: "Node", Name: bc.Node.Name}
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
