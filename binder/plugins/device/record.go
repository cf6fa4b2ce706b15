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

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/internal/podstate"
	"github.com/prebind/prebind/internal/text"
)

// The other keys of a record are UIDs of pods.
const (
	nodeField = "node"
	lockField = "node-lock"
)

// record contains the grants of one node.
type record struct {
	Node string
	// Entries contains the grants by the UID of the pod.
	Entries map[types.UID]*entry
	// Lock is nil if no bind holds the node lock.
	Lock *lock
}

func newRecord(node string) *record { return &record{Node: node, Entries: map[types.UID]*entry{}} }

// entry contains the grants of one pod.
type entry struct {
	Pod ledger.ObjectName `json:"pod"`
	// Bound reports that the pod was seen bound to the node. The grant then belongs to the
	// pod until the pod is gone or finished. Before, it belongs to the attempts.
	Bound bool `json:"bound,omitempty"`
	// Grants contains the grants of all attempts at the bind: two replicas can work on it,
	// and a later Binding can request other devices for the same attempt. All of them count
	// until the pod is bound.
	Grants []grant `json:"grants"`
}

type grant struct {
	Attempt string  `json:"attempt"`
	Devices devices `json:"devices"`
}

// lock is the node lock. The attempts at the bind of one pod hold it together.
type lock struct {
	Pod      ledger.ObjectName `json:"pod"`
	UID      types.UID         `json:"uid"`
	Attempts []string          `json:"attempts"`
	// Expires is when the lock ends for its holder, by the clock of the replica that took
	// it. Other replicas take the lock when they have not seen it change for the timeout;
	// see Plugin.seenLocks.
	Expires time.Time `json:"expires"`
}

func nameOf(pod *corev1.Pod) ledger.ObjectName {
	return ledger.ObjectName{Namespace: pod.Namespace, Name: pod.Name}
}

func (r *record) empty() bool { return len(r.Entries) == 0 && r.Lock == nil }

// held returns the share of a device that the pod can be using: the largest one in its
// grants.
func (e *entry) held(key, id string) share {
	var most share
	for _, g := range e.Grants {
		most = max(most, g.Devices[key][id])
	}
	return most
}

// has returns whether the attempt has a grant of exactly these devices.
func (e *entry) has(attempt string, d devices) bool {
	return slices.ContainsFunc(e.Grants, func(g grant) bool { return g.Attempt == attempt && g.Devices.equal(d) })
}

// grantsOf returns the number of grants of the attempt.
func (e *entry) grantsOf(attempt string) int {
	n := 0
	for _, g := range e.Grants {
		if g.Attempt == attempt {
			n++
		}
	}
	return n
}

// conflict is a device with less free capacity than the bind requests.
type conflict struct {
	key, id     string
	asked, free share
	// holders are the other pods that hold a part of the device, in the order of their names.
	holders []types.UID
}

// conflicts returns the devices that cannot be granted because other pods hold them, in
// order.
func (r *record) conflicts(uid types.UID, wanted devices) []conflict {
	var found []conflict
	for _, d := range wanted.list() {
		c := conflict{key: d.Request, id: d.Name, asked: wanted[d.Request][d.Name], free: whole}
		for other, e := range r.Entries {
			if s := e.held(c.key, c.id); other != uid && s > 0 {
				c.free -= s
				c.holders = append(c.holders, other)
			}
		}
		if c.asked > c.free {
			slices.SortFunc(c.holders, func(a, b types.UID) int {
				return strings.Compare(r.Entries[a].Pod.String()+string(a), r.Entries[b].Pod.String()+string(b))
			})
			found = append(found, c)
		}
	}
	return found
}

// describe returns one line that lists the devices and their holders.
func (r *record) describe(conflicts []conflict) string {
	const most = 4
	var parts []string
	for _, c := range conflicts {
		var who []string
		for _, uid := range c.holders {
			e := r.Entries[uid]
			var details []string
			if s := e.held(c.key, c.id); s != whole {
				details = append(details, s.String())
			}
			if !e.Bound {
				details = append(details, "bind in progress")
			}
			holder := "pod " + e.Pod.String()
			if len(details) > 0 {
				holder += " (" + strings.Join(details, ", ") + ")"
			}
			who = append(who, holder)
		}
		part := fmt.Sprintf("device %s (%s) is held by %s", c.id, c.key, strings.Join(text.Shorten(who, most), ", "))
		if c.asked != whole || c.free > 0 {
			part += fmt.Sprintf(": requested %s, free %s", c.asked, max(c.free, 0))
		}
		parts = append(parts, part)
	}
	return strings.Join(text.Shorten(parts, most), "; ")
}

// prepared reports whether the attempt has a grant of exactly the requested devices, and the lock until
// the given time.
func (r *record) prepared(uid types.UID, attempt string, a ask, until time.Time) bool {
	e := r.Entries[uid]
	return (len(a.devices) == 0 || e != nil && e.has(attempt, a.devices)) &&
		(!a.lock || r.Lock != nil && r.Lock.UID == uid && slices.Contains(r.Lock.Attempts, attempt) && !r.Lock.Expires.Before(until))
}

// grant adds a grant. The caller must check for conflicts first.
func (r *record) grant(pod *corev1.Pod, attempt string, d devices) {
	if len(d) == 0 {
		return
	}
	e := r.Entries[pod.UID]
	if e == nil {
		e = &entry{Pod: nameOf(pod)}
		r.Entries[pod.UID] = e
	}
	if !e.has(attempt, d) {
		e.Grants = append(e.Grants, grant{Attempt: attempt, Devices: d})
	}
}

// release removes the grants of the attempt, unless the pod is bound: then they belong to
// the pod.
func (r *record) release(uid types.UID, attempt string) {
	e := r.Entries[uid]
	if e == nil || e.Bound {
		return
	}
	e.Grants = slices.DeleteFunc(e.Grants, func(g grant) bool { return g.Attempt == attempt })
	if len(e.Grants) == 0 {
		delete(r.Entries, uid)
	}
}

// drop removes the grants of the pod and its lock.
func (r *record) drop(uid types.UID) {
	delete(r.Entries, uid)
	r.unlock(uid, "")
}

// bind gives the pod the grant that it was bound with. The annotations of the bound pod name
// the attempt, and select one grant if the attempt has several. If they match no grant, the pod was
// bound without this plugin after an earlier bind had a grant: bind keeps all grants, and adds the pod's devices.
// It restores a missing entry.
func (r *record) bind(pod *corev1.Pod, says grant) {
	e := r.Entries[pod.UID]
	if e == nil && len(says.Devices) > 0 {
		e = &entry{Pod: nameOf(pod)}
		r.Entries[pod.UID] = e
	}
	if e == nil || e.Bound {
		return
	}
	e.Bound = true
	keep := func(which func(g grant) bool) {
		if slices.ContainsFunc(e.Grants, which) {
			e.Grants = slices.DeleteFunc(e.Grants, func(g grant) bool { return !which(g) })
		}
	}
	keep(func(g grant) bool { return g.Attempt == says.Attempt })
	has := func(g grant) bool { return g.Devices.equal(says.Devices) }
	keep(has)
	if len(says.Devices) > 0 && !slices.ContainsFunc(e.Grants, has) {
		e.Grants = append(e.Grants, says)
	}
}

// take adds the attempt to the holders of the node lock. The caller must check that the lock
// is free or belongs to the pod.
func (r *record) take(pod *corev1.Pod, attempt string, expires time.Time) {
	if r.Lock == nil || r.Lock.UID != pod.UID {
		r.Lock = &lock{Pod: nameOf(pod), UID: pod.UID}
	}
	if !slices.Contains(r.Lock.Attempts, attempt) {
		r.Lock.Attempts = append(r.Lock.Attempts, attempt)
	}
	// Round up, so that the lock never ends before the requested time.
	r.Lock.Expires = expires.UTC().Add(time.Second - 1).Truncate(time.Second)
}

// unlock removes the attempt, or all attempts for "", from the holders of the pod's lock.
func (r *record) unlock(uid types.UID, attempt string) {
	if r.Lock == nil || r.Lock.UID != uid {
		return
	}
	r.Lock.Attempts = slices.DeleteFunc(r.Lock.Attempts, func(a string) bool { return attempt == "" || a == attempt })
	if len(r.Lock.Attempts) == 0 {
		r.Lock = nil
	}
}

// marks returns the attempts whose grants and locks are not confirmed.
func (r *record) marks() []framework.Mark {
	var marks []framework.Mark
	add := func(pod ledger.ObjectName, uid types.UID, attempt string) {
		marks = append(marks, framework.Mark{Pod: types.NamespacedName(pod), PodUID: uid, Node: r.Node, Attempt: attempt})
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

func (r *record) boundPods() sets.Set[types.UID] {
	bound := sets.New[types.UID]()
	for uid, e := range r.Entries {
		if e.Bound {
			bound.Insert(uid)
		}
	}
	return bound
}

// stateOf is podstate.Of, except that a finished pod is gone: it uses no
// devices any more.
func stateOf(pod *corev1.Pod, uid types.UID, node string) podstate.State {
	if pod != nil && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed) {
		return podstate.Gone
	}
	return podstate.Of(pod, uid, node)
}
