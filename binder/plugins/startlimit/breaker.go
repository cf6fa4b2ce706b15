// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/compact"
)

const (
	// maxNodes limits the circuit breakers of a namespace, because a tenant can make nodes refuse its
	// own pods. Refusals of more nodes are ignored.
	maxNodes = 1000
	// maxTimes limits the refusals that a circuit breaker keeps.
	maxTimes = 2 * maxRefusals
)

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

// limits are the arguments of a circuit breaker. No refusals means that it is always closed.
type limits struct {
	refusals     int
	window, open time.Duration
}

// history is the state of a circuit breaker. It does not depend on the current time.
type history struct {
	// opened is the last refusal after which the breaker was open, or zero.
	opened time.Time
	// times are the refusals that have not been replayed, or that can still open the breaker, in order.
	times []time.Time
}

// replay returns the history after its refusals.
func (l limits) replay(h history) history {
	if l.refusals == 0 {
		return h
	}
	now := history{opened: h.opened}
	for _, t := range h.times {
		switch {
		case l.phase(now, t) != closed:
			if t.After(now.opened) {
				now.opened = t
			}
		default:
			now.times = slices.DeleteFunc(append(now.times, t), func(old time.Time) bool { return t.Sub(old) > l.window })
			if len(now.times) >= l.refusals {
				now = history{opened: t}
			}
		}
	}
	return now
}

// phase returns the state at the time, of a history that was replayed.
func (l limits) phase(h history, now time.Time) phase {
	switch {
	case l.refusals == 0 || h.opened.IsZero() || !now.Before(h.opened.Add(l.open+l.window)):
		return closed
	case now.Before(h.opened.Add(l.open)):
		return open
	default:
		return trying
	}
}

// isOver returns whether the history no longer matters.
func (l limits) isOver(h history, now time.Time) bool {
	return l.phase(h, now) == closed && (len(h.times) == 0 || now.Sub(h.times[len(h.times)-1]) > l.window)
}

// breakers are the circuit breakers of all nodes. Each namespace has its own, because a tenant can
// make a node refuse pods of its namespace at any time. It is safe for concurrent use.
type breakers struct {
	openings prometheus.Counter
	limits   limits
	clock    clock.PassiveClock
	events   events.EventRecorder

	mu sync.Mutex
	// of contains histories by namespace and node.
	of map[string]map[string]history
	// swept is the time of the last sweep.
	swept time.Time
}

func newBreakers() breakers {
	return breakers{
		of: map[string]map[string]history{},
		openings: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "prebind_start_limit_breaker_openings_total",
			Help: "Circuit breakers of a node and a namespace that this replica opened, because the kubelet refused pods.",
		}),
	}
}

// handler returns a handler for an informer.
func (b *breakers) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{AddFunc: func(o any, initial bool) {
		if pod, ok := compact.Unpack(o).(*corev1.Pod); ok {
			b.refused(pod, initial)
		}
	}}
}

// refused records a refusal. It records that of an initial list at its own time, unless this is in the future.
// It records any other now, because the clock of the node can be wrong. But after an interruption of the watch,
// the informer reports old refusals as new ones. They are older than the window.
func (b *breakers) refused(pod *corev1.Pod, initial bool) {
	namespace, name := pod.Namespace, pod.Spec.NodeName
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	at := now
	if own := pod.Status.StartTime; own != nil && own.Time.Before(now) && (initial || now.Sub(own.Time) > b.limits.window) {
		at = own.Time
	}
	if !initial && now.Sub(b.swept) >= b.limits.window {
		b.sweep(now)
	}
	if b.of[namespace] == nil {
		b.of[namespace] = map[string]history{}
	}
	h, known := b.of[namespace][name]
	if !known && len(b.of[namespace]) >= maxNodes {
		return
	}
	i, _ := slices.BinarySearchFunc(h.times, at, time.Time.Compare)
	h.times = slices.Insert(h.times, i, at)
	h.times = h.times[max(0, len(h.times)-maxTimes):]
	if !initial {
		// An initial list is not in order, so its refusals are replayed with the next one or the next bind.
		was := b.limits.phase(h, now)
		h = b.limits.replay(h)
		if was != open && b.limits.phase(h, now) == open {
			b.opened(namespace, name, pod.Status.Reason)
		}
	}
	b.of[namespace][name] = h
}

// sweep removes the breakers that are over. It must be called with mu held.
func (b *breakers) sweep(now time.Time) {
	b.swept = now
	for namespace, of := range b.of {
		maps.DeleteFunc(of, func(_ string, h history) bool { return b.limits.isOver(b.limits.replay(h), now) })
		if len(of) == 0 {
			delete(b.of, namespace)
		}
	}
}

// opened reports that a breaker is open. It must be called with mu held.
func (b *breakers) opened(namespace, name, reason string) {
	b.openings.Inc()
	if b.events == nil {
		return
	}
	// The UID of a node in events is its name, as in events of kubelets. client-go merges events about the same
	// objects, so the namespace is part of the event.
	b.events.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)},
		&corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: namespace}, corev1.EventTypeWarning, reasonRefuses, "Binding",
		"%s: the kubelet refused pods of the namespace %s, most recently with the reason %s; Prebind binds no pods of this namespace to the node for %s",
		Name, namespace, reason, b.limits.open)
}

// at returns the state of the node for the namespace, and the end of the state open.
func (b *breakers) at(namespace, name string, now time.Time) (phase, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.limits.replay(b.of[namespace][name])
	return b.limits.phase(h, now), h.opened.Add(b.limits.open)
}
