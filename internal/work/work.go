// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package work remembers the binds for which plugins have written, from before the first write to
// the outcome. It decides nothing about binds: calls do. It confirms the writes when the pod is
// bound, and rolls them back when the bind is over.
package work

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
)

// AbandonAfter is how long the work on a bind is kept without a call, after the time when one was
// expected.
const AbandonAfter = time.Minute

// Cause is why work is given up from outside; it is the cause of a context's end. Two
// Causes with one text are the same error.
type Cause string

// Error implements error.
func (c Cause) Error() string { return string(c) }

// Why the work on a bind ends before the pod is bound.
const (
	// Rejected: the last call for the bind was rejected.
	Rejected = Cause("the bind was rejected")
	// Superseded: the scheduler has chosen another node for the pod.
	Superseded = Cause("the scheduler chose another node")
	// LeaseLost: other replicas may have rolled back the writes.
	LeaseLost = Cause("this replica did not renew its lease in time")
	// Stopped: the process ends. Another replica continues.
	Stopped = Cause("this replica is shutting down")
	// Closing: an earlier attempt is being rolled back.
	Closing = Cause("an earlier attempt is being rolled back")
)

// Key identifies a bind. Two calls with one Key are the same bind. The UID of the request is not
// part of it: the API server gives each call, and each reinvocation, another one.
type Key struct {
	Pod  types.UID
	Node string
}

// IDSeparator separates the replica from the rest of an attempt's ID, which is random.
const IDSeparator = "-"

// ReplicaOf returns the replica that the attempt belongs to.
func ReplicaOf(id string) string {
	replica, _, _ := strings.Cut(id, IDSeparator)
	return replica
}

// Outcomes of binds that were allowed.
const (
	Bound    = "bound"
	NotBound = "not bound"
)

// Options of a Set. All fields are required.
type Options struct {
	// Cached reads pods without a node from a cache, and Live reads pods from the API server.
	Cached, Live framework.Reader
	// Events records on the pod what its bind waits for, why it is rejected, and that it was rolled back.
	Events events.EventRecorder
	// Recorder records the work on binds.
	Recorder Recorder
	// Replica identifies this process, by letters and digits only.
	Replica string
	// Changes reports changes of the objects of the cache.
	Changes *notify.Hub
	// Term returns the number of the replica's current term, and whether the replica holds it. A bind may rely only on
	// writes in a term that is still held: other replicas may have rolled back the others. Term must be fast, and safe for
	// concurrent use.
	Term  func() (term int64, held bool)
	Clock clock.Clock
}

// Set is the work of this replica. It is safe for concurrent use.
type Set struct {
	o       Options
	running sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	entries map[Key]*Entry
}

// NewSet returns a Set without work.
func NewSet(o Options) *Set {
	return &Set{o: o, entries: map[Key]*Entry{}}
}

// Entry is the work on one bind.
type Entry struct {
	key  Key
	node types.UID
	pod  types.NamespacedName
	id   string
	term int64
	// began is the time of the entry.
	began time.Time
	// writing holds a value while a plugin writes.
	writing chan struct{}
	// leave ends the follower with the process.
	leave context.CancelFunc

	// The rest is guarded by Set.mu.

	// writers are the plugins whose PreBind was started, each once, in order. written are those whose PreBind has succeeded.
	writers []framework.PreBinder
	written sets.Set[string]
	// calls is the number of calls in progress. due is when the bind is over if there are none. open is until when the API server may
	// bind the pod for an allowed call, or zero.
	calls     int
	due, open time.Time
	// cause is why the entry is rolled back, once that is requested.
	cause error
	// closed says that the entry is rolled back or confirmed: there are no more writes.
	closed bool
}

// bindable returns whether the API server may bind the pod for an allowed call. It must be called with Set.mu held.
func (e *Entry) bindable(now time.Time) bool { return !now.After(e.open) }

// over returns whether nothing in progress can bind the pod. It must be called with Set.mu held.
func (e *Entry) over(now time.Time) bool {
	return !e.bindable(now) && (e.cause != nil || e.calls == 0 && now.After(e.due))
}

// ID returns the attempt's ID, which marks the writes of plugins.
func (e *Entry) ID() string { return e.id }

func (e *Entry) mark() framework.Mark {
	return framework.Mark{Pod: e.pod, PodUID: e.key.Pod, Node: e.key.Node, Attempt: e.id}
}

// Join returns the entry of the bind for a call, or nil if there is none, and the attempt's ID: that of the entry, or else
// a new one. e and id are those that the call has already. They are kept until the writes of e are confirmed or rolled
// back. The call must Leave the last entry. Join requests the rollback of an entry of an earlier term, or of an earlier node with the name.
func (s *Set) Join(key Key, node types.UID, e *Entry, id string) (*Entry, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.entries[key]
	if term, _ := s.o.Term(); found != nil && found.term != term {
		s.giveUp(found, LeaseLost)
	} else if found != nil && found.node != node {
		s.giveUp(found, Superseded)
	}
	switch {
	case found == nil && e == nil && id != "":
		return nil, id
	case found == nil:
		// All IDs of a replica have the same length.
		return nil, s.o.Replica + IDSeparator + rand.String(10)
	case found != e:
		found.calls++
		return found, found.id
	default:
		return e, id
	}
}

// Open returns the entry of the bind for a call, and makes one with the ID if there is none. The
// call must Leave it. Open rolls back the work for the pod on other nodes, unless a call for it is in
// progress or was allowed. It returns an error if the replica does not hold its lease or is shutting down.
func (s *Set) Open(ctx context.Context, key Key, node types.UID, pod types.NamespacedName, id string) (*Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	term, held := s.o.Term()
	switch {
	case s.stopped:
		return nil, Stopped
	case !held:
		return nil, LeaseLost
	}
	if e := s.entries[key]; e != nil {
		e.calls++
		return e, nil
	}
	for _, other := range s.entries {
		// Two schedulers that both wait for the pod would roll each other back again and again.
		if other.key.Pod == key.Pod && other.calls == 0 {
			s.end(other, Superseded)
		}
	}
	ctx, leave := context.WithCancel(context.WithoutCancel(ctx))
	e := &Entry{
		key: key, node: node, pod: pod, id: id, term: term, began: s.o.Clock.Now(), calls: 1, leave: leave,
		writing: make(chan struct{}, 1), written: sets.Set[string]{},
	}
	s.entries[key] = e
	s.running.Go(func() { s.follow(ctx, e) })
	return e, nil
}

// Leave ends a call's use of the entry. The next call is expected after that time at the latest. If the call was rejected, Leave
// requests the rollback, unless other calls for the bind are in progress, or an earlier one was allowed.
func (s *Set) Leave(e *Entry, rejected bool, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.calls--
	now := s.o.Clock.Now()
	if due := now.Add(next + AbandonAfter); due.After(e.due) && (next > 0 || !e.bindable(now)) {
		e.due = due
	}
	if rejected && e.calls == 0 {
		s.end(e, Rejected)
	}
	s.wake(e)
}

// Written returns whether a PreBind of the plugin has succeeded for the entry.
func (s *Set) Written(e *Entry, plugin string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.written.Has(plugin)
}

// Write calls preBind of the plugin while no other call writes for the bind. It records the plugin
// before the call, because the process, the call, and the API server can stop at any point. It
// returns one of the causes of this package without calling preBind if the entry is being rolled
// back, the replica does not hold the term of the entry, or the context ends.
func (s *Set) Write(ctx context.Context, e *Entry, p framework.PreBinder, preBind func() error) error {
	select {
	case e.writing <- struct{}{}:
		defer func() { <-e.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := s.enter(e, p); err != nil {
		return err
	}
	if err := preBind(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.written.Insert(p.Name())
	return nil
}

// enter records that the PreBind of a plugin is started.
func (s *Set) enter(e *Entry, p framework.PreBinder) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(e); err != nil {
		return err
	}
	if !slices.ContainsFunc(e.writers, func(w framework.PreBinder) bool { return w.Name() == p.Name() }) {
		e.writers = append(e.writers, p)
	}
	return nil
}

// usable returns why no bind may rely on the entry. It must be called with mu held.
func (s *Set) usable(e *Entry) error {
	switch term, held := s.o.Term(); {
	case s.stopped:
		return Stopped
	case e.cause != nil || e.closed:
		return Closing
	case !held || term != e.term:
		return LeaseLost
	}
	return nil
}

// Allow records that a call is allowed. With an error, the call must not be allowed.
func (s *Set) Allow(e *Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(e); err != nil {
		return err
	}
	e.open = s.o.Clock.Now().Add(framework.BindSettles)
	e.due = e.open
	s.wake(e)
	return nil
}

// end requests the rollback of an entry, or, while the API server may bind the pod, expects no further call. It must be called with mu held.
func (s *Set) end(e *Entry, cause error) {
	if !e.bindable(s.o.Clock.Now()) {
		s.giveUp(e, cause)
	} else if e.due.After(e.open) {
		e.due = e.open
		s.wake(e)
	}
}

// giveUp requests the rollback of an entry that no call may use any more. It is rolled back when the API server cannot bind the pod any more. It must
// be called with mu held.
func (s *Set) giveUp(e *Entry, cause error) {
	if e.cause == nil && !e.closed {
		e.cause = cause
		s.wake(e)
	}
}

// wake wakes the follower of the entry and the calls for its pod. They all have subscribed to the pod.
func (s *Set) wake(e *Entry) {
	s.o.Changes.Changed(notify.RefTo(&corev1.Pod{}, e.pod.Namespace, e.pod.Name))
}

// forget removes the entry. After Stop, it keeps it: a sweep would roll back what another replica continues.
func (s *Set) forget(e *Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		delete(s.entries, e.key)
	}
	e.leave()
	s.wake(e)
}

// working returns the attempts that are in progress in this replica.
func (s *Set) working() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for _, e := range s.entries {
		all[e.id] = true
	}
	return all
}

// Stop leaves all work as it is, prevents more, and waits for the followers until the context ends.
// The repeated calls reach another replica, which continues. It may be called again.
func (s *Set) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	for _, e := range s.entries {
		e.leave()
	}
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		s.running.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the work on binds did not end in time: %w", ctx.Err())
	}
}
