// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// rules are the arguments by which slots are given.
type rules struct {
	limit   int
	timeout time.Duration
}

// starting is a pod that starts, or a bind that has reserved a slot for its pod.
type starting struct {
	namespace string
	uid       types.UID
	// since is the time of the bind or of the reservation.
	since time.Time
	// attempt made the reservation. It is empty for a pod.
	attempt string
}

// ends returns when the pod no longer counts.
func (s starting) ends(r rules) time.Time { return s.since.Add(r.timeout) }

// merge returns the pods and reservations that count at the time. A pod with a reservation counts once.
func (r rules) merge(pods []corev1.Pod, reserved []starting, now time.Time) []starting {
	var all []starting
	for i := range pods {
		p := &pods[i]
		s := starting{namespace: p.Namespace, uid: p.UID, since: boundAt(p)}
		if isStarting(p) && s.ends(r).After(now) {
			all = append(all, s)
		}
	}
	for _, s := range reserved {
		counted := slices.ContainsFunc(all, func(other starting) bool { return other.uid == s.uid })
		if !counted && s.ends(r).After(now) {
			all = append(all, s)
		}
	}
	return all
}

// next returns when the first of them no longer counts, or the zero time.
func (r rules) next(all []starting) time.Time {
	var first time.Time
	for _, s := range all {
		if end := s.ends(r); first.IsZero() || end.Before(first) {
			first = end
		}
	}
	return first
}

// slots are the reservations and queues of all nodes. It is safe for concurrent use.
type slots struct {
	mu    sync.Mutex
	nodes map[string]*node
	// changed is called after a change that can end a wait for the node.
	changed func(node string)
}

type node struct {
	reserved []starting
	// queue contains the binds that wait, in the order of their arrival.
	queue []*ticket
}

// ticket is the place of a bind in the queue of its node.
type ticket struct {
	node string
	bind starting
}

func newSlots() *slots { return &slots{nodes: map[string]*node{}, changed: func(string) {}} }

// onChange sets the function that is called after a change that can end a wait.
func (s *slots) onChange(changed func(node string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = changed
}

// update calls f with the state of the node, and reports a change if f returns true.
func (s *slots) update(name string, f func(n *node) bool) bool {
	s.mu.Lock()
	n := s.nodes[name]
	if n == nil {
		n = &node{}
		s.nodes[name] = n
	}
	did := f(n)
	if len(n.reserved) == 0 && len(n.queue) == 0 {
		delete(s.nodes, name)
	}
	changed := s.changed
	s.mu.Unlock()
	if did {
		changed(name)
	}
	return did
}

// enter returns a place at the end of the queue, or nil if the bind has a slot.
func (s *slots) enter(name string, bind starting) *ticket {
	var t *ticket
	s.update(name, func(n *node) bool {
		if i := n.find(bind.uid); i >= 0 {
			n.reserved[i].attempt = bind.attempt
			return false
		}
		t = &ticket{node: name, bind: bind}
		n.queue = append(n.queue, t)
		return false
	})
	return t
}

// leave removes the ticket from the queue, if it is still there.
func (s *slots) leave(t *ticket) {
	s.update(t.node, func(n *node) bool { return n.dequeue(t) })
}

// ahead returns how many binds are before the ticket in the queue.
func (s *slots) ahead(t *ticket) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Index(s.nodes[t.node].queue, t)
}

// answer is the result of take.
type answer struct {
	taken bool
	// busy means that another pod of the namespace starts.
	busy bool
	// next is when a slot can become free without an event.
	next time.Time
}

// take reserves a slot for the ticket if there is one for it and for all binds before it. If alone is
// set, it does so only if no other pod of the namespace starts on the node.
func (s *slots) take(t *ticket, pods []corev1.Pod, r rules, now time.Time, alone bool) answer {
	var a answer
	s.update(t.node, func(n *node) bool {
		n.reserved = slices.DeleteFunc(n.reserved, func(old starting) bool { return !old.ends(r).After(now) })
		all := r.merge(pods, n.reserved, now)
		a.busy = alone && slices.ContainsFunc(all, func(other starting) bool { return other.namespace == t.bind.namespace })
		a.taken = !a.busy && len(all)+slices.Index(n.queue, t) < r.limit
		if !a.taken {
			a.next = r.next(all)
			return false
		}
		t.bind.since = now
		n.reserved = append(n.reserved, t.bind)
		return n.dequeue(t)
	})
	return a
}

// on returns the reservations and the length of the queue of the node. The caller owns the slice.
func (s *slots) on(name string) (reserved []starting, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		return slices.Clone(n.reserved), len(n.queue)
	}
	return nil, 0
}

// release ends the reservation of the attempt, or of any attempt if it is empty. It returns whether
// there was one.
func (s *slots) release(name string, uid types.UID, attempt string) bool {
	return s.update(name, func(n *node) bool {
		i := n.find(uid)
		if i < 0 || attempt != "" && n.reserved[i].attempt != attempt {
			return false
		}
		n.reserved = slices.Delete(n.reserved, i, i+1)
		return true
	})
}

// count returns the number of reservations and of waiting binds on all nodes.
func (s *slots) count() (reserved, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		reserved, queued = reserved+len(n.reserved), queued+len(n.queue)
	}
	return reserved, queued
}

func (n *node) find(uid types.UID) int {
	return slices.IndexFunc(n.reserved, func(s starting) bool { return s.uid == uid })
}

// dequeue returns whether another bind waits behind the ticket.
func (n *node) dequeue(t *ticket) bool {
	i := slices.Index(n.queue, t)
	if i < 0 {
		return false
	}
	n.queue = slices.Delete(n.queue, i, i+1)
	return i < len(n.queue)
}
