// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
)

// maxTimes limits the rejections that a circuit breaker keeps.
const maxTimes = 2 * maxRefusals

// reasonRefuses is the reason of the event on the node. It is stable.
const reasonRefuses = "NodeRefusesPods"

// phase is the state of a circuit breaker.
type phase int

const (
	// closed means that pods are bound.
	closed phase = iota
	// open means that no pod is bound.
	open
	// trying means that one pod at a time is bound.
	trying
)

// limits are the arguments of a circuit breaker.
type limits struct {
	refusals     int
	window, open time.Duration
}

// history is the state of a circuit breaker. It does not depend on the current time, and not on the order in which
// the rejections were added.
type history struct {
	// opened is the last rejection after which the breaker was open, or zero.
	opened time.Time
	// times are the last rejections, in order.
	times []time.Time
}

// add returns the history with another rejection. It opens the breaker if enough rejections are within the window, or if the
// breaker was not closed.
func (l limits) add(h history, at time.Time) history {
	i, _ := slices.BinarySearchFunc(h.times, at, time.Time.Compare)
	times := slices.Insert(slices.Clone(h.times), i, at)
	h.times = times[max(0, len(times)-maxTimes):]
	for last, t := range h.times {
		first := last + 1 - l.refusals
		enough := first >= 0 && t.Sub(h.times[first]) <= l.window
		if t.After(h.opened) && (enough || l.phase(h, t) != closed) {
			h.opened = t
		}
	}
	return h
}

// since returns the history without the rejections before the time.
func (l limits) since(h history, created time.Time) history {
	i, _ := slices.BinarySearchFunc(h.times, created, time.Time.Compare)
	if i == 0 {
		return h
	}
	var is history
	for _, at := range h.times[i:] {
		is = l.add(is, at)
	}
	return is
}

// phase returns the state at the time.
func (l limits) phase(h history, now time.Time) phase {
	switch {
	case h.opened.IsZero() || !now.Before(h.opened.Add(l.open+l.window)):
		return closed
	case now.Before(h.opened.Add(l.open)):
		return open
	default:
		return trying
	}
}

// breakers are the circuit breakers of all nodes. Each namespace has its own, because a tenant can
// make a node reject pods of its namespace at any time. It is safe for concurrent use.
type breakers struct {
	openings prometheus.Counter
	limits   limits
	clock    clock.PassiveClock
	events   events.EventRecorder
	// histories contains the history of each breakerKey. It expires when no rejection matters any more. Only the handler changes it.
	histories *utilcache.Expiring
}

// breakerKey identifies a circuit breaker.
type breakerKey struct{ namespace, node string }

func newBreakers() breakers {
	return breakers{openings: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "prebind_start_limit_breaker_openings_total",
		Help: "Circuit breakers of a node and a namespace that this replica opened, because the kubelet refused pods.",
	})}
}

// handler returns a handler for an informer, which calls it from one goroutine.
func (b *breakers) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{AddFunc: func(o any, initial bool) {
		if pod := podOf(o); pod != nil {
			b.refused(pod, initial)
		}
	}}
}

// refused records a rejection at its own time, because an informer can report it late, but not in the future, because the clock of
// the node can be wrong. An initial list causes no events.
func (b *breakers) refused(pod *corev1.Pod, initial bool) {
	key, now := breakerKey{namespace: pod.Namespace, node: pod.Spec.NodeName}, b.clock.Now()
	at := now
	if own := pod.Status.StartTime; own != nil && own.Time.Before(now) {
		at = own.Time
	}
	if created := pod.CreationTimestamp.Time; at.Before(created) { // The clock of the node is behind that of the API server.
		at = created
	}
	was := b.of(key)
	is := b.limits.add(was, at)
	b.histories.Set(key, is, b.limits.open+b.limits.window)
	if !initial && b.limits.phase(was, now) != open && b.limits.phase(is, now) == open {
		b.opened(key, pod.Status.Reason)
	}
}

// of returns the history of a circuit breaker.
func (b *breakers) of(key breakerKey) history {
	found, _ := b.histories.Get(key)
	h, _ := found.(history)
	return h
}

// opened reports that a breaker is open.
func (b *breakers) opened(key breakerKey, reason string) {
	b.openings.Inc()
	// The UID of a node in events is its name, as in events of kubelets. client-go merges events about the same
	// objects, so the namespace is part of the event.
	b.events.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: key.node, UID: types.UID(key.node)},
		&corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: key.namespace}, corev1.EventTypeWarning, reasonRefuses, "Binding",
		"%s: the kubelet refused pods of the namespace %s, most recently with the reason %s; Prebind binds no pods of this namespace to the node for %s",
		Name, key.namespace, reason, b.limits.open)
}

// at returns the state of the node for the namespace, and the end of the state open. Rejections by an earlier node with the same name do not count,
// also if they are reported late.
func (b *breakers) at(namespace string, node *corev1.Node, now time.Time) (phase, time.Time) {
	h := b.limits.since(b.of(breakerKey{namespace: namespace, node: node.Name}), node.CreationTimestamp.Time)
	return b.limits.phase(h, now), h.opened.Add(b.limits.open)
}
