// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// rules decide who gets a slot.
type rules struct {
	limit int
	// replicas is the number of live replicas, or 0 if it is not known.
	replicas int
}

// share returns how many slots a replica may have reserved on a node on which it has observed so many pods that
// start. The replicas share the free slots, but each may reserve one.
//
// All replicas together exceed the limit by at most (replicas-1)*share(0). Each replica observes a prefix of the same
// history. Compare the last reservation of each replica, and choose the one with the longest prefix. Its pods and
// reservations are within the limit. They include all pods that start now, except the pods that another replica
// had reserved and not observed at its own last reservation. These are at most the share of that replica.
//
// If all replicas have observed the same pods, they exceed the limit by at most replicas-1, because shares of more than
// one slot are together within the free slots.
func (r rules) share(observed int) int {
	if r.replicas == 0 {
		return 1
	}
	return max(1, (r.limit-observed)/r.replicas)
}

// fits returns whether the node has a slot for another bind of this replica.
func (r rules) fits(s usage) bool {
	return s.observed+s.reserved < r.limit && s.reserved < r.share(s.observed)
}

// usage is the use of the slots of a node, as one bind counts it.
type usage struct {
	// observed and reserved are the numbers of pods that start, and of reservations, without the slot that own means.
	observed, reserved int
	// own means that the bind may use the slot that its pod has. busy means that another pod of its namespace has one.
	own, busy bool
}

// slot is a slot of a node in use: by a pod that starts, or by a bind.
type slot struct {
	namespace string
	// reserved is when a bind reserved the slot. It is zero if this replica has observed the pod.
	reserved time.Time
	// timer removes the slot. It starts when this replica first observes the pod, and each time when a bind reserves the slot. The time
	// of the bind in the pod is not used, because the clock of the API server can differ.
	timer clock.Timer
}

// slots are the slots in use on all nodes. It is safe for concurrent use.
type slots struct {
	mu    sync.Mutex
	clock clock.WithDelayedExecution
	// timeout is how long a pod counts.
	timeout time.Duration
	// nodes contains the slots by node and pod.
	nodes map[string]map[types.UID]*slot
	// changed is called after a change that can end a wait for the node.
	changed func(node string)
}

// usage returns the use of the slots of the node for a bind of the pod.
func (s *slots) usage(node, namespace string, uid types.UID) usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usageLocked(node, namespace, uid)
}

// usageLocked must be called with mu held.
func (s *slots) usageLocked(node, namespace string, uid types.UID) usage {
	var all usage
	for id, other := range s.nodes[node] {
		switch {
		case id == uid && (other.reserved.IsZero() || s.clock.Since(other.reserved) < observeTime):
			all.own = true
			continue
		case !other.reserved.IsZero():
			all.reserved++
		default:
			all.observed++
		}
		all.busy = all.busy || id != uid && other.namespace == namespace
	}
	return all
}

// reserve reserves a slot for the pod if there is one, and returns whether it has one. If alone is set, there is none while another
// pod of the namespace has one. The reservation ends when the cache contains the pod, or observeTime after the last call, because a
// bind that is repeated can take effect late. After observeTime, a repeated bind needs another slot, so that a bind that never succeeds
// does not keep its slot.
func (s *slots) reserve(node, namespace string, uid types.UID, r rules, alone bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, since := s.usageLocked(node, namespace, uid), s.clock.Now()
	switch {
	case seen.own:
		if since = s.nodes[node][uid].reserved; since.IsZero() {
			return true
		}
	case !r.fits(seen) || alone && seen.busy:
		return false
	}
	s.put(node, uid, &slot{namespace: namespace, reserved: since}, observeTime)
	return true
}

// put adds a slot that counts for the time. It must be called with mu held.
func (s *slots) put(node string, uid types.UID, in *slot, counts time.Duration) {
	if s.nodes[node] == nil {
		s.nodes[node] = map[types.UID]*slot{}
	}
	in.timer = s.clock.AfterFunc(counts, func() {
		s.remove(node, uid, func(old *slot) bool { return old == in })
	})
	s.nodes[node][uid] = in
}

// remove removes the slot of the pod if it is the one.
func (s *slots) remove(node string, uid types.UID, isOne func(*slot) bool) {
	s.mu.Lock()
	old := s.nodes[node][uid]
	found := old != nil && isOne(old)
	if found {
		old.timer.Stop()
		if delete(s.nodes[node], uid); len(s.nodes[node]) == 0 {
			delete(s.nodes, node)
		}
	}
	s.mu.Unlock()
	if found {
		s.changed(node)
	}
}

// observed records a pod that starts. Its reservation ends, so that the share of the replica can fit another one.
func (s *slots) observed(pod *corev1.Pod) {
	s.mu.Lock()
	reserved := s.nodes[pod.Spec.NodeName][pod.UID] != nil
	s.put(pod.Spec.NodeName, pod.UID, &slot{namespace: pod.Namespace}, s.timeout)
	s.mu.Unlock()
	if reserved {
		s.changed(pod.Spec.NodeName)
	}
}

// ended records that a pod no longer starts.
func (s *slots) ended(pod *corev1.Pod) {
	s.remove(pod.Spec.NodeName, pod.UID, func(old *slot) bool { return old.reserved.IsZero() })
}

// handler returns a handler for an informer of pods that start.
func (s *slots) handler() toolscache.ResourceEventHandler {
	change := func(before, after any) {
		is := podOf(after)
		if same, ok := before.(*corev1.Pod); ok && is != nil && is.UID == same.UID {
			return // A pod whose time is over, or that was stuck, does not count again.
		}
		if was := podOf(before); was != nil {
			s.ended(was)
		}
		if is != nil {
			s.observed(is)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { change(nil, o) },
		UpdateFunc: change,
		DeleteFunc: func(o any) { change(o, nil) },
	}
}

// count returns the number of reservations on all nodes.
func (s *slots) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for _, of := range s.nodes {
		for _, one := range of {
			if !one.reserved.IsZero() {
				count++
			}
		}
	}
	return count
}
