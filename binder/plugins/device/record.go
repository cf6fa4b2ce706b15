// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/binder/framework"
)

// The keys of a record's ConfigMap that are no pod's UID.
const (
	nodeField = "node"
	lockField = "node-lock"
)

// record is what is granted on one node. It is a value of its own: to change it
// changes nothing else until the store writes it.
type record struct {
	Node string
	// Entries by the pod's UID.
	Entries map[types.UID]*entry
	// Lock is the node's lock, or nil.
	Lock *lock
	// object is what it was read from; nil for one that does not exist yet.
	object *corev1.ConfigMap
}

// entry is what one pod was granted.
type entry struct {
	Pod podName `json:"pod"`
	// Bound says that the pod was seen bound to the node: the grant is its own, until
	// the pod is gone or finished. Before, it is that of the attempts.
	Bound bool `json:"bound,omitempty"`
	// Grants are those of the attempts at the bind, for two replicas may be at it,
	// and one attempt may be told other devices by a later Binding. Until the bind
	// has come about all of them count.
	Grants []grant `json:"grants"`
}

type grant struct {
	Attempt string  `json:"attempt"`
	Devices devices `json:"devices"`
}

// lock is held by the attempts at one pod's bind.
type lock struct {
	Pod      podName   `json:"pod"`
	UID      types.UID `json:"uid"`
	Attempts []string  `json:"attempts"`
	// Expires is until when it counts for whoever holds it, by the clock of who took it.
	// Others take it when they have seen it like this for that long: see sights.
	Expires time.Time `json:"expires"`
}

// podName is written as namespace/name.
type podName types.NamespacedName

// String implements fmt.Stringer.
func (n podName) String() string { return n.Namespace + "/" + n.Name }

// MarshalText implements encoding.TextMarshaler.
func (n podName) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *podName) UnmarshalText(text []byte) error {
	namespace, name, ok := strings.Cut(string(text), "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%q is no pod's namespace/name", short(string(text)))
	}
	*n = podName{Namespace: namespace, Name: name}
	return nil
}

func nameOf(pod *corev1.Pod) podName { return podName{Namespace: pod.Namespace, Name: pod.Name} }

func (r *record) empty() bool { return len(r.Entries) == 0 && r.Lock == nil }

// held is what the entry's pod may be using: the most that any of its grants says.
func (e *entry) held(key, id string) share {
	var most share
	for _, g := range e.Grants {
		most = max(most, g.Devices[key][id])
	}
	return most
}

// conflict is a device of which less is free than is asked for.
type conflict struct {
	key, id     string
	asked, free share
	holders     []holder
}

// holder is a pod that holds a device, or a part of it.
type holder struct {
	uid   types.UID
	pod   podName
	share share
	bound bool
}

// conflicts are what the pod cannot be granted for what other pods hold, in order.
func (r *record) conflicts(uid types.UID, wanted devices) []conflict {
	var found []conflict
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		for _, id := range slices.Sorted(maps.Keys(wanted[key])) {
			c := conflict{key: key, id: id, asked: wanted[key][id], free: whole}
			for other, e := range r.Entries {
				if s := e.held(key, id); other != uid && s > 0 {
					c.free -= s
					c.holders = append(c.holders, holder{uid: other, pod: e.Pod, share: s, bound: e.Bound})
				}
			}
			if c.asked > c.free {
				slices.SortFunc(c.holders, func(a, b holder) int {
					return strings.Compare(a.pod.String()+string(a.uid), b.pod.String()+string(b.uid))
				})
				found = append(found, c)
			}
		}
	}
	return found
}

// holders returns those of all conflicts, each once, in order.
func (r *record) holders(conflicts []conflict) []holder {
	var all []holder
	for _, c := range conflicts {
		for _, h := range c.holders {
			if !slices.ContainsFunc(all, func(o holder) bool { return o.uid == h.uid }) {
				all = append(all, h)
			}
		}
	}
	return all
}

// describe says in one line who holds what.
func describe(conflicts []conflict) string {
	const most = 4
	var parts []string
	for _, c := range conflicts[:min(most, len(conflicts))] {
		var who []string
		for _, h := range c.holders[:min(most, len(c.holders))] {
			text := "pod " + h.pod.String()
			if h.share != whole {
				text += " (" + h.share.String() + ")"
			}
			if !h.bound {
				text += ", whose bind is under way"
			}
			who = append(who, text)
		}
		if more := len(c.holders) - len(who); more > 0 {
			who = append(who, fmt.Sprintf("%d more", more))
		}
		text := fmt.Sprintf("the device %s (%s) is held by %s", c.id, c.key, strings.Join(who, " and "))
		if c.asked != whole || c.free > 0 {
			text += fmt.Sprintf(": %s of it is asked for and %s is free", c.asked, max(c.free, 0))
		}
		parts = append(parts, text)
	}
	if more := len(conflicts) - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more devices are held", more))
	}
	return strings.Join(parts, "; ")
}

// prepared says whether the attempt was granted just this, and holds the lock until
// then.
func (r *record) prepared(uid types.UID, attempt string, a ask, until time.Time) bool {
	return r.granted(uid, attempt, a) &&
		(!a.lock || r.Lock != nil && r.Lock.UID == uid && slices.Contains(r.Lock.Attempts, attempt) && !r.Lock.Expires.Before(until))
}

// granted says whether the attempt was granted just these devices.
func (r *record) granted(uid types.UID, attempt string, a ask) bool {
	e := r.Entries[uid]
	return len(a.devices) == 0 || e != nil && slices.ContainsFunc(e.Grants, func(g grant) bool {
		return g.Attempt == attempt && g.Devices.equal(a.devices)
	})
}

// isBound says whether the pod was seen bound to the node.
func (r *record) isBound(uid types.UID) bool {
	e := r.Entries[uid]
	return e != nil && e.Bound
}

// grant adds a grant. The caller has seen that nothing is in conflict with it.
func (r *record) grant(pod *corev1.Pod, attempt string, d devices) {
	if len(d) == 0 {
		return
	}
	e := r.Entries[pod.UID]
	if e == nil {
		e = &entry{Pod: nameOf(pod)}
		r.Entries[pod.UID] = e
	}
	if !slices.ContainsFunc(e.Grants, func(g grant) bool { return g.Attempt == attempt && g.Devices.equal(d) }) {
		e.Grants = append(e.Grants, grant{Attempt: attempt, Devices: d})
	}
}

// release takes back what the attempt was granted, unless the pod is bound: then
// it is the pod's. It says whether there was anything.
func (r *record) release(uid types.UID, attempt string) bool {
	e := r.Entries[uid]
	if e == nil || e.Bound {
		return false
	}
	had := len(e.Grants)
	e.Grants = slices.DeleteFunc(e.Grants, func(g grant) bool { return g.Attempt == attempt })
	released := len(e.Grants) < had
	if len(e.Grants) == 0 {
		delete(r.Entries, uid)
	}
	return released
}

// drop takes back whatever the pod was granted, and its lock. It says whether
// there was anything.
func (r *record) drop(uid types.UID) bool {
	_, had := r.Entries[uid]
	delete(r.Entries, uid)
	return r.unlock(uid, "") || had
}

// bind makes the grant the pod's own by which it was bound, by what the bound pod
// says itself: that of the attempt that it names and, where that has several, the
// one that was for the devices that it names. When in doubt it keeps all. A grant
// that was lost it makes up. It says whether it changed anything.
func (r *record) bind(pod *corev1.Pod, says grant) bool {
	e := r.Entries[pod.UID]
	if e == nil {
		if len(says.Devices) == 0 {
			return false
		}
		r.Entries[pod.UID] = &entry{Pod: nameOf(pod), Bound: true, Grants: []grant{says}}
		return true
	}
	if e.Bound {
		return false
	}
	e.Bound = true
	keep := func(which func(g grant) bool) {
		if slices.ContainsFunc(e.Grants, which) {
			e.Grants = slices.DeleteFunc(e.Grants, func(g grant) bool { return !which(g) })
		}
	}
	keep(func(g grant) bool { return g.Attempt == says.Attempt })
	keep(func(g grant) bool { return g.Devices.equal(says.Devices) })
	return true
}

// take makes the attempt a holder of the node's lock. The caller has seen that it
// is free, or the pod's already.
func (r *record) take(pod *corev1.Pod, attempt string, expires time.Time) {
	if r.Lock == nil || r.Lock.UID != pod.UID {
		r.Lock = &lock{Pod: nameOf(pod), UID: pod.UID}
	}
	if !slices.Contains(r.Lock.Attempts, attempt) {
		r.Lock.Attempts = append(r.Lock.Attempts, attempt)
	}
	// Up to the next full second, for it is never shorter than asked for.
	r.Lock.Expires = expires.UTC().Add(time.Second - 1).Truncate(time.Second)
}

// unlock releases the lock as far as the attempt of the pod holds it; no attempt
// stands for all of them. It says whether there was anything.
func (r *record) unlock(uid types.UID, attempt string) bool {
	if r.Lock == nil || r.Lock.UID != uid {
		return false
	}
	had := len(r.Lock.Attempts)
	r.Lock.Attempts = slices.DeleteFunc(r.Lock.Attempts, func(a string) bool { return attempt == "" || a == attempt })
	released := len(r.Lock.Attempts) < had
	if len(r.Lock.Attempts) == 0 {
		r.Lock = nil
	}
	return released
}

// marks are the attempts whose grants and locks are not confirmed.
func (r *record) marks() []framework.Mark {
	var marks []framework.Mark
	add := func(pod podName, uid types.UID, attempt string) {
		m := framework.Mark{Pod: types.NamespacedName(pod), PodUID: uid, Node: r.Node, Attempt: attempt}
		if !slices.Contains(marks, m) {
			marks = append(marks, m)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(r.Entries)) {
		if e := r.Entries[uid]; !e.Bound {
			for _, g := range e.Grants {
				add(e.Pod, uid, g.Attempt)
			}
		}
	}
	if r.Lock != nil {
		for _, attempt := range r.Lock.Attempts {
			add(r.Lock.Pod, r.Lock.UID, attempt)
		}
	}
	return marks
}

// boundPods are the pods whose grants are their own.
func (r *record) boundPods() sets.Set[types.UID] {
	bound := sets.New[types.UID]()
	for uid, e := range r.Entries {
		if e.Bound {
			bound.Insert(uid)
		}
	}
	return bound
}

// whereabouts is what a pod's record entry stands for.
type whereabouts string

const (
	// gone: the pod is deleted, finished, or on another node. It holds nothing here,
	// and never will again.
	gone whereabouts = "gone"
	// pending: it may still be bound to the node.
	pending whereabouts = "pending"
	// bound: it is bound to the node, and not finished.
	bound whereabouts = "bound"
)

// where decides by the live pod, which is nil when there is none of the name.
func where(pod *corev1.Pod, uid types.UID, node string) whereabouts {
	switch {
	case pod == nil || pod.UID != uid:
		return gone
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return gone
	case pod.Spec.NodeName == "":
		return pending
	case pod.Spec.NodeName != node:
		return gone
	default:
		return bound
	}
}
