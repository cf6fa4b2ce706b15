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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
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

// onePod is a cache, or an API server, with at most one pod. It counts its reads.
type onePod struct {
	mu    sync.Mutex
	pod   *corev1.Pod
	err   error
	reads atomic.Int32
}

func (p *onePod) set(pod *corev1.Pod, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pod, p.err = pod, err
}

func (p *onePod) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	p.reads.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	pod, ok := into.(*corev1.Pod)
	switch {
	case p.err != nil:
		return p.err
	case !ok || p.pod == nil || client.ObjectKeyFromObject(p.pod) != key:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	p.pod.DeepCopyInto(pod)
	return nil
}

// List implements client.Reader. A sweeper does not list.
func (*onePod) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("unexpected list")
}

// scene is a replica named "here" with a cache and an API server that the test controls.
type scene struct {
	o            Options
	plugins      []framework.Plugin
	cached, live *onePod
}

func newScene(plugins ...framework.Plugin) *scene {
	s := &scene{cached: &onePod{pod: thePod}, live: &onePod{pod: thePod}, plugins: plugins}
	s.o = Options{
		Cached: s.cached, Live: s.live, Recorder: &watcher{}, Events: events.NewFakeRecorder(100), Replica: "here", Clock: clock.RealClock{},
	}
	return s
}

// podIs changes the pod; nil deletes it.
func (s *scene) podIs(pod *corev1.Pod) {
	s.live.set(pod, nil)
	if pod != nil && pod.Spec.NodeName != "" {
		pod = nil
	}
	s.cached.set(pod, nil)
}

// sweeper returns a sweeper with these other replicas.
func (s *scene) sweeper(peers Peers) *sweeper {
	return &sweeper{Set: NewSet(s.o), plugins: s.plugins, peers: peers, orphans: map[orphanKey]*orphan{}}
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
	name     string
	calls    *journal
	rollBack func(ctx context.Context, m framework.Mark) error
}

func newWriter(calls *journal) *recordingWriter { return &recordingWriter{name: "p", calls: calls} }

func (w *recordingWriter) Name() string { return w.name }

func (*recordingWriter) PreBind(context.Context, *framework.BindContext) error { return nil }

func (*recordingWriter) PreFlight(*framework.BindContext) (framework.Verdict, error) {
	return framework.Verdict{}, nil
}

func (*recordingWriter) Marks(context.Context) ([]framework.Mark, error) { return nil, nil }

func (w *recordingWriter) PostBind(context.Context, framework.Mark) error {
	w.calls.add(w.name + " PostBind")
	return nil
}

func (w *recordingWriter) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	if w.rollBack != nil {
		return w.rollBack(ctx, m)
	}
	w.calls.add(w.name + " PreBindRollBack")
	return nil
}

// marker is a plugin with marks.
type marker struct {
	*recordingWriter
	marks []framework.Mark
	err   error
}

func (m *marker) Marks(context.Context) ([]framework.Mark, error) { return m.marks, m.err }

type livingReplicas map[string]bool

// follower is a replica that does not lead.
type follower struct{ livingReplicas }

func (follower) Leads() bool { return false }

func (livingReplicas) Leads() bool { return true }

func (l livingReplicas) Living(context.Context) (map[string]bool, error) {
	copied := map[string]bool{}
	for id := range l {
		copied[id] = true
	}
	return copied, nil
}

type switchable struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (*switchable) Leads() bool { return true }

func (l *switchable) Living(context.Context) (map[string]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := map[string]bool{}
	for k := range l.ids {
		c[k] = true
	}
	return c, nil
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
