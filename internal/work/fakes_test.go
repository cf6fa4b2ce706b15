// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

var (
	thePod      = gen.Pod("web", gen.UID("pod-1"))
	errScripted = errors.New("as the script says")
)

// markOf is a mark for thePod on node-a.
func markOf(attempt string) framework.Mark {
	return framework.Mark{
		Pod:    types.NamespacedName{Namespace: thePod.Namespace, Name: thePod.Name},
		PodUID: thePod.UID, Node: "node-a", Attempt: attempt,
	}
}

// fixture is a replica named "here" with one plugin.
type fixture struct {
	o      Options
	plugin framework.Plugin
}

// newFixture returns a replica whose API server has at most one pod.
func newFixture(plugin framework.Plugin, pod *corev1.Pod) *fixture {
	cached, live := fakeapi.New(), fakeapi.New()
	if pod != nil {
		live.Put(pod)
	}
	if pod != nil && pod.Spec.NodeName == "" {
		cached.Put(pod)
	}
	return &fixture{plugin: plugin, o: Options{
		Cached: cached.Cache(), Live: live.Cache(), Recorder: &watcher{}, Events: events.NewFakeRecorder(100), Replica: "here", Clock: clock.RealClock{},
	}}
}

// sweeper returns a sweeper with these other replicas.
func (s *fixture) sweeper(peers Peers) *sweeper {
	return &sweeper{Set: NewSet(s.o), plugins: []framework.Plugin{s.plugin}, peers: peers, orphans: map[orphanKey]*orphan{}}
}

// sweep runs a sweeper with these other replicas for the time.
func (s *fixture) sweep(t *testing.T, peers Peers, d time.Duration) *sweeper {
	ctx, cancel := context.WithTimeout(quiet(t), d)
	defer cancel()
	w := s.sweeper(peers)
	w.run(ctx)
	return w
}

// written returns an attempt that has written through the plugins, and whose rollback begins.
func (s *fixture) written(t *testing.T, writers ...framework.PreBinder) (*Set, *Entry) {
	set, e := s.writing(t, writers...)
	set.Leave(e, true, 0)
	return set, e
}

// writing returns an attempt that has written through the plugins, and a call for it in progress.
func (s *fixture) writing(t *testing.T, writers ...framework.PreBinder) (*Set, *Entry) {
	set, e := s.open(t)
	for _, w := range writers {
		require.NoError(t, set.Write(t.Context(), e, w, func() error { return nil }))
	}
	return set, e
}

// open returns an attempt that has written nothing.
func (s *fixture) open(t *testing.T) (*Set, *Entry) {
	s.o.Changes, s.o.Term = notify.NewHub(), func() (int64, bool) { return 1, true }
	set := NewSet(s.o)
	e, err := set.Open(quiet(t), Key{Pod: thePod.UID, Node: "node-a"}, "", markOf("").Pod, "here-1")
	require.NoError(t, err)
	return set, e
}

// journal is a list of events, in order.
type journal struct {
	mu   sync.Mutex
	list []string
}

func (j *journal) add(event string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list = append(j.list, event)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string{}, j.list...)
}

// watcher is a Recorder that records calls of Swept.
type watcher struct {
	unrecorded
	journal
}

func (w *watcher) Swept(plugin, action string, err error) {
	w.add(fmt.Sprint("swept: ", plugin, " ", action, " ", err))
}

// recordingWriter is a plugin that records the calls of its PostBind and PreBindRollBack.
type recordingWriter struct {
	calls    *journal
	rollBack func(ctx context.Context, m framework.Mark) error
}

func newWriter(calls *journal) *recordingWriter { return &recordingWriter{calls: calls} }

func (*recordingWriter) Name() string { return "p" }

func (*recordingWriter) PreBind(context.Context, *framework.BindContext) error { return nil }

func (*recordingWriter) PreFlight(*framework.BindContext) (framework.Verdict, error) {
	return framework.Verdict{}, nil
}

func (*recordingWriter) Marks(context.Context) ([]framework.Mark, error) { return nil, nil }

func (w *recordingWriter) PostBind(context.Context, framework.Mark, *corev1.Pod) error {
	w.calls.add("p PostBind")
	return nil
}

func (w *recordingWriter) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	if w.rollBack != nil {
		return w.rollBack(ctx, m)
	}
	w.calls.add("p PreBindRollBack")
	return nil
}

// marker is a plugin with marks.
type marker struct {
	*recordingWriter
	marks []framework.Mark
	err   error
	// list replaces marks and err, if it is set.
	list func() ([]framework.Mark, error)
}

func (m *marker) Marks(context.Context) ([]framework.Mark, error) {
	if m.list != nil {
		return m.list()
	}
	return m.marks, m.err
}

type livingReplicas map[string]bool

func (livingReplicas) Leads() bool { return true }

func (l livingReplicas) Living() map[string]bool { return l }

// follower is a replica that does not lead.
type follower struct{ livingReplicas }

func (follower) Leads() bool { return false }

// ending are replicas that end together.
type ending struct {
	livingReplicas
	ended atomic.Bool
}

func (e *ending) Living() map[string]bool {
	if e.ended.Load() {
		return map[string]bool{}
	}
	return e.livingReplicas
}

// pass advances the time of the test.
func pass(d time.Duration) { <-time.After(d) }

// quiet is the context of the test without a log.
func quiet(t testing.TB) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

// unrecorded is a Recorder that ignores all calls.
type unrecorded struct{}

func (unrecorded) Step(ctx context.Context, _ Step) (context.Context, func(error)) {
	return ctx, func(error) {}
}

func (unrecorded) ReadLive(string, string) {}

func (unrecorded) HoldRefused() {}

func (unrecorded) AttemptEnded(string) {}

func (unrecorded) RolledBack(string, error) {}

func (unrecorded) Swept(string, string, error) {}
