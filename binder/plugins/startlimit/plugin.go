// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package startlimit is the PreBind plugin that limits how many pods start on a node at the same
// time. A bind that exceeds the limit waits for a slot. A circuit breaker rejects nodes whose
// kubelet rejects the pods of a namespace.
//
// A pod starts from its bind until it leaves the phase Pending. The cache holds only these pods, in
// a compact form. A bind reserves its slot in the memory of the replica (slots.go) when all other
// plugins are ready, until the cache contains the pod. Therefore the limit is exact for the binds of one
// replica. Other replicas observe the pod only after its bind. So that they exceed the limit by little, each
// replica reserves only its share of the free slots; see rules.share.
//
// Binds that wait get free slots in any order. If an allowed bind fails, its slot is lost for observeTime after its last call.
package startlimit

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/podstate"
)

// observeTime is how long a reservation is kept after the last allowed bind if the watch does not report the
// pod. The pod can have left the phase Pending during an interruption of the watch, or its bind can have failed.
const observeTime = framework.BindSettles

// Plugin limits starts. It is safe for concurrent use.
type Plugin struct {
	*framework.Decider
	h       framework.Handle
	args    *Arguments
	slots   slots
	refused breakers
}

var _ framework.Reserver = (*Plugin)(nil)

// newPlugin returns the plugin without its arguments.
func newPlugin() *Plugin {
	p := &Plugin{slots: slots{nodes: map[string]map[types.UID]*slot{}}, refused: newBreakers()}
	p.h.Replicas = func() int { return 0 } // For the metric, while the plugin is off.
	p.Decider = framework.NewPlugin(Name, p.decide)
	return p
}

// configure completes the plugin. The handlers of the watches run only afterwards.
func (p *Plugin) configure(h framework.Handle, a *Arguments) (framework.Plugin, error) {
	p.h, p.args = h, a
	p.h.Replicas() // The first call begins the observation of the replicas.
	// Every bind to the node wakes up when its slots change.
	p.slots.timeout = a.StartTimeout.Duration
	p.slots.clock, p.slots.changed = h.Clock, func(node string) { h.Wake(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}) }
	p.refused.clock, p.refused.events, p.refused.histories = h.Clock, h.Events, utilcache.NewExpiringWithClock(h.Clock)
	p.refused.limits = limits{refusals: a.BreakerRefusals, window: a.BreakerWindow.Duration, open: a.BreakerOpen.Duration}
	return p, nil
}

// rules returns the rules for the present number of replicas.
func (p *Plugin) rules() rules {
	return rules{limit: p.args.Limit, replicas: p.h.Replicas()}
}

// decide rejects the bind if the circuit breaker is open, and waits for a slot if the pod needs one. The handlers of the
// watches have read the pods.
func (p *Plugin) decide(_ context.Context, _ framework.Reader, bc *framework.BindContext) (framework.Verdict, error) {
	if podstate.IsSystem(bc.Pod) {
		return framework.Verdict{}, nil
	}
	r := p.rules()
	s := p.slots.usage(bc.Node.Name, bc.Pod.Namespace, bc.Pod.UID)
	state, until := p.refused.at(bc.Pod.Namespace, bc.Node, bc.Now)
	switch {
	case state == open, state == trying && s.busy:
		return framework.Verdict{}, rejected(bc, state, until)
	case s.own, r.fits(s): // Each allowed bind renews its reservation.
		return framework.Verdict{Late: true, Writes: []string{"reserve a slot on the node"}}, nil
	}
	w := framework.Wait{Object: framework.ObjectOf(bc.Node), For: "pods on the node to start (limit " + strconv.Itoa(r.limit) + ")"}
	if r.replicas == 0 {
		w.Until = bc.Now.Add(time.Second) // The number of replicas is known soon.
	}
	wait, err := bc.AtMost(p.args.Wait.Duration, w, "choose another node")
	return framework.Verdict{Wait: wait}, err
}

// Reserve implements framework.Reserver.
func (p *Plugin) Reserve(bc *framework.BindContext) bool {
	state, _ := p.refused.at(bc.Pod.Namespace, bc.Node, bc.Now)
	return state != open && p.slots.reserve(bc.Node.Name, bc.Pod.Namespace, bc.Pod.UID, p.rules(), state == trying)
}

// rejected returns the error of a circuit breaker that is not closed.
func rejected(bc *framework.BindContext, state phase, until time.Time) *framework.Error {
	if state == trying {
		return framework.Refuse(framework.ObjectOf(bc.Node), "the kubelet refused pods of the namespace %s, and another one tries the node now", bc.Pod.Namespace).
			Advise("choose another node")
	}
	return framework.Refuse(framework.ObjectOf(bc.Node), "the kubelet refused pods of the namespace %s; no pod of the namespace is bound to the node before %s",
		bc.Pod.Namespace, until.UTC().Format(time.RFC3339)).Advise("choose another node, and check the events of the node")
}
