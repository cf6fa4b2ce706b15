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

// rules decide who gets a slot.
type rules struct {
	limit   int
	timeout time.Duration
	// replicas is the number of live replicas, or 0 if it is not known.
	replicas int
}

// share returns how many slots a replica may have reserved on a node on which it has observed so many pods that
// start. The replicas share the free slots, but each may reserve one.
//
// All replicas together exceed the limit by at most (replicas-1)*share(0). Each replica observes a prefix of the same
// history. Compare the last take of each replica, and choose the take with the longest prefix. Its pods and
// reservations are within the limit. They include all pods that start now, except the pods that another replica
// had reserved and not observed at its own last take. These are at most the share of that replica.
//
// If all replicas have observed the same pods, they exceed the limit by at most replicas-1, because shares of more than
// one slot are together within the free slots.
func (r rules) share(observed int) int {
	if r.replicas == 0 {
		return 1
	}
	return max(1, (r.limit-observed)/r.replicas)
}

// starting is a pod that starts, or a bind that has reserved a slot for its pod.
type starting struct {
	namespace string
	uid       types.UID
	// since is the time of the bind or of the reservation.
	since time.Time
	// attempt made the reservation. It is empty for a pod.
	attempt string
	// number identifies the last take of the reservation. It is 0 for a pod.
	number uint64
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
	// seen is the result of observations.
	seen uint64
	// taken is the number of the last take.
	taken uint64
	// changed is called after a change that can end a wait for the node.
	changed func(node string)
	// replicas returns the number of live replicas, or 0 if it is not known.
	replicas func() int
}

type node struct {
	reserved []starting
	// queue contains the binds that wait, in the order of their arrival.
	queue []*ticket
}

// ticket is the place of a bind in the queue of its node.
type ticket struct {
	node string
	// away means that the client is between two calls. Binds behind the ticket do not wait for it.
	away bool
}

func newSlots() *slots {
	return &slots{nodes: map[string]*node{}, changed: func(string) {}, replicas: func() int { return 0 }}
}

// connect sets the function that is called after a change that can end a wait, and the one that
// returns the number of live replicas.
func (s *slots) connect(changed func(node string), replicas func() int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed, s.replicas = changed, replicas
}

// sharers returns the number of live replicas, or 0 if it is not known.
func (s *slots) sharers() int {
	s.mu.Lock()
	replicas := s.replicas
	s.mu.Unlock()
	return replicas()
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

// enter returns a place at the end of the queue of the node.
func (s *slots) enter(name string) *ticket {
	t := &ticket{node: name}
	s.update(name, func(n *node) bool {
		n.queue = append(n.queue, t)
		return false
	})
	return t
}

// attend records whether the client of the bind is between two calls. If it leaves, the binds behind it may get its turn.
func (s *slots) attend(t *ticket, away bool, limit int) {
	s.update(t.node, func(n *node) bool {
		left := away && !t.away && n.before(t) < limit
		t.away = away
		return left && n.before(nil) > 0
	})
}

// leave removes the ticket from the queue, if it is still there.
func (s *slots) leave(t *ticket) {
	s.update(t.node, func(n *node) bool { return n.dequeue(t) })
}

// canTake returns whether take can succeed: not if too many binds are before the ticket, or if the client is away, unless the
// pod has a slot.
func (s *slots) canTake(t *ticket, uid types.UID, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[t.node]
	return !t.away && n.before(t) < limit || n.find(uid) >= 0
}

// view is a list of the pods that start on a node.
type view struct {
	pods []corev1.Pod
	// seen is the value of observations before the list. A reservation that ends later may be of a pod that
	// the list does not contain.
	seen uint64
}

// answer is the result of take.
type answer struct {
	taken bool
	// outdated means that take needs a new view.
	outdated bool
	// busy means that another pod of the namespace starts.
	busy bool
	// next is when a slot can become free without an event.
	next time.Time
}

// take reserves a slot for the bind if this replica has one for it and for all binds before its ticket. Without a
// ticket, all binds in the queue are before it. Binds whose client is away do not count. If alone is set, take does so only if no other pod of the
// namespace starts on the node. A bind that has a slot keeps it, until the
// first reservation times out.
func (s *slots) take(name string, bind starting, t *ticket, v view, r rules, alone bool) answer {
	var a answer
	s.update(name, func(n *node) bool {
		n.reserved = slices.DeleteFunc(n.reserved, func(old starting) bool { return !old.ends(r).After(bind.since) })
		if i := n.find(bind.uid); i >= 0 {
			// The time does not change, so that a bind that never succeeds does not keep its slot.
			s.taken++
			n.reserved[i].attempt, n.reserved[i].number, a.taken = bind.attempt, s.taken, true
			return n.dequeue(t)
		}
		if a.outdated = s.seen != v.seen; a.outdated {
			return false
		}
		all := r.merge(v.pods, n.reserved, bind.since)
		ahead := n.before(t)
		reserved := 0
		for _, s := range all {
			if s.number > 0 {
				reserved++
			}
		}
		a.busy = alone && slices.ContainsFunc(all, func(other starting) bool { return other.namespace == bind.namespace })
		a.taken = !a.busy && len(all)+ahead < r.limit && reserved+ahead < r.share(len(all)-reserved)
		if !a.taken {
			a.next = r.next(all)
			return false
		}
		s.taken++
		bind.number = s.taken
		n.reserved = append(n.reserved, bind)
		return n.dequeue(t)
	})
	return a
}

// observations returns a number that changes when the cache contains a pod that had a reservation.
func (s *slots) observations() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// on returns the reservations of the node, and how many binds in its queue have a client that is not away. The caller owns the slice.
func (s *slots) on(name string) (reserved []starting, queued int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		return slices.Clone(n.reserved), n.before(nil)
	}
	return nil, 0
}

// release ends the reservation of the attempt. It returns whether there was one.
func (s *slots) release(name string, uid types.UID, attempt string) bool {
	return s.end(name, uid, func(r starting) bool { return r.attempt == attempt })
}

// number returns the number of the attempt's reservation, or 0.
func (s *slots) number(name string, uid types.UID, attempt string) uint64 {
	reserved, _ := s.on(name)
	for _, r := range reserved {
		if r.uid == uid && r.attempt == attempt {
			return r.number
		}
	}
	return 0
}

// expire ends the reservation unless it was taken again.
func (s *slots) expire(name string, uid types.UID, number uint64) {
	s.end(name, uid, func(r starting) bool { return r.number == number })
}

// end ends the reservation of the pod if it is the one.
func (s *slots) end(name string, uid types.UID, isOne func(starting) bool) bool {
	return s.update(name, func(n *node) bool {
		i := n.find(uid)
		if i < 0 || !isOne(n.reserved[i]) {
			return false
		}
		n.reserved = slices.Delete(n.reserved, i, i+1)
		return true
	})
}

// observed ends the reservation of a pod that the cache contains now.
func (s *slots) observed(name string, uid types.UID) {
	s.update(name, func(n *node) bool {
		i := n.find(uid)
		if i < 0 {
			return false
		}
		n.reserved = slices.Delete(n.reserved, i, i+1)
		s.seen++
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

// before returns how many binds whose client is not away are in the queue before the ticket, or in the whole queue for nil.
func (n *node) before(t *ticket) int {
	count := 0
	for _, other := range n.queue {
		if other == t {
			break
		}
		if !other.away {
			count++
		}
	}
	return count
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
