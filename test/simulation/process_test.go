// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/plugins/nodeready"
	"github.com/prebind/prebind/binder/plugins/startlimit"
	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/unrecorded"
)

// plugins are those of every replica.
var plugins = []string{"policy", "node-state", "start-limit", "node-ready", "device", "resource-claims", "volumebinding", "announce"}

// process is one replica from its start to its end.
type process struct {
	w    *world
	id   string
	dice *dice
	// cache is the delayed copy of the API server that the replica has. Other kinds than these are not watched.
	cache    *fakeapi.Server
	changes  *notify.Hub
	handlers map[string]toolscache.ResourceEventHandler
	streams  []*stream
	plugins  []framework.Plugin
	engine   *binder.Engine
	lease    *replica.Replicas
	// startLimit is how many pods may start on a node at the same time.
	startLimit int
	// killed is closed when the process ends without a goodbye.
	killed context.Context //nolint:containedctx // The life of the process.
	kill   context.CancelCauseFunc
	// cut keeps it from renewing its lease.
	cut atomic.Bool
	// leadsUntil is the end of its last term as the leader, in nanoseconds of Unix time.
	leadsUntil atomic.Int64
	suspension
	// rate counts the requests for each object in the present second.
	mu     sync.Mutex
	second time.Time
	rate   map[string]int
	// slowUntil is the end of the time in which requests are slow.
	slowUntil time.Time
}

// lateAnswer is how late the API server's answer can be.
const lateAnswer = 5 * time.Second

// maxRate is how many requests a replica may send for one object in a second: two calls that pause for 20 ms after each request of 1 to 20 ms
// send about 66, and a loop without a pause sends about 95.
const maxRate = 75

// stream is the watch of one kind, or of a selection.
type stream struct {
	kind      string
	selection *selected
	mu        sync.Mutex
	queue     []event
	wake      chan struct{}
	last      time.Time
	behind    time.Time
}

type event struct {
	object  client.Object
	deleted bool
	at      time.Time
}

var errKilled = errors.New("the process was killed")

// start starts a replica.
func (w *world) start() {
	w.mu.Lock()
	w.number++
	id := "r" + strconv.Itoa(w.number)
	w.mu.Unlock()
	p := &process{w: w, id: id, dice: w.random("replica " + id), cache: fakeapi.New(), changes: notify.NewHub(), handlers: map[string]toolscache.ResourceEventHandler{}}
	p.startLimit = 1 + p.dice.below(2)
	for _, kind := range watched {
		p.streams = append(p.streams, &stream{kind: kind})
	}
	p.killed, p.kill = context.WithCancelCause(klog.NewContext(w.over, logr.Discard()))
	connection := w.api.Connect()
	connection.Step = p.step
	chain := mutation.NewChain(nil, nil)
	p.lease = replica.New(replica.Options{
		ID: id, Client: p.cuttable(), Namespace: system, Clock: suspendedClock{p: p, wall: true},
		Synced: func() bool { return true }, Status: func() (string, error) { return "", nil },
	})
	var all []framework.Plugin
	for _, r := range app.RegisteredPlugins() {
		if !slices.Contains(plugins, r.Name) {
			continue
		}
		var arguments framework.Arguments
		if r.Arguments != nil {
			arguments = r.Arguments()
		}
		switch a := arguments.(type) {
		case *nodeready.Arguments:
			a.Checks = []string{"csi-drivers"}
		case *startlimit.Arguments:
			a.Limit, a.BreakerRefusals = p.startLimit, 0
		}
		if r.Selections != nil {
			for _, s := range r.Selections("prebind-system", arguments) {
				if s.Handler == nil {
					continue // The plugin reads them from the cache.
				}
				if _, pods := s.Example.(*corev1.Pod); !pods {
					p.handlers[fakeapi.Kind(s.Example)] = s.Handler
					continue
				}
				p.streams = append(p.streams, &stream{kind: fakeapi.Kind(s.Example), selection: &selected{Selection: s, known: map[client.ObjectKey]client.Object{}}})
			}
		}
		built, err := r.New(framework.Handle{
			Cached: p.cached(), Live: connection, Writer: connection, Status: connection, Wake: p.changes.Wake, Clock: suspendedClock{p: p},
			Namespace: system, Replicas: func() int { return p.lease.Count() }, Leads: func() bool { return false }, Events: &events.FakeRecorder{},
			Select: func(context.Context, framework.Selection) error { return nil }, Keep: func(sets.Set[string]) {},
		}, arguments)
		require.NoError(w.t, err)
		all = append(all, built)
		if s, ok := built.(framework.Starter); ok {
			w.actors.Go(func() { _ = s.Start(p.killed) })
		}
	}
	p.plugins = all
	p.engine = binder.New(binder.Options{
		Options: work.Options{
			Cached: p.cached(), Live: connection, Replica: id, Term: p.lease.Term, Changes: p.changes, Events: &events.FakeRecorder{}, Recorder: unrecorded.Recorder{}, Clock: suspendedClock{p: p},
		},
		Settings: binder.Settings{
			Mode: binder.ModeEnforce, Mutators: chain, Plugins: all, Hold: []time.Duration{5 * time.Second, 25 * time.Second}[p.dice.below(2)],
			RejectWaits: p.dice.below(4) == 0, MaxHolds: 1 + p.dice.below(4), PreBindTimeout: p.dice.between(2*time.Minute, 5*time.Minute), MaxPreBindTimeout: 10 * time.Minute,
		},
	})
	p.watch()
	w.actors.Go(func() { _ = p.lease.Start(p.killed) })
	w.actors.Go(func() { p.engine.Sweep(p.killed, p) })
	w.note("%s starts", id)
	w.mu.Lock()
	w.replicas = append(w.replicas, p)
	w.mu.Unlock()
}

// selectedOnly are the kinds that a replica has in selections only: a read without a selection fails in Prebind.
var selectedOnly = sets.New("PersistentVolumeClaim", "PersistentVolume", "CSINode", "ConfigMap", "BindPolicy", "BindTask")

// cached returns the reader of the replica's cache.
func (p *process) cached() framework.Reader { return uncached{Reader: p.cache.Cache(), w: p.w} }

// uncached fails the test if a plugin reads what Prebind's cache does not have.
type uncached struct {
	framework.Reader
	w *world
}

// Get implements client.Reader.
func (u uncached) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if !slices.ContainsFunc(opts, func(o client.GetOption) bool { _, ok := o.(framework.Selection); return ok }) && selectedOnly.Has(framework.KindOf(into)) {
		u.w.t.Errorf("a plugin reads %s without a selection", framework.KindOf(into))
	}
	return u.Reader.Get(ctx, key, into, opts...)
}

// List implements client.Reader.
func (u uncached) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if _, ok := framework.SelectedBy(opts); !ok && selectedOnly.Has(framework.KindOf(into)) {
		u.w.t.Errorf("a plugin lists %s without a selection", framework.KindOf(into))
	}
	return u.Reader.List(ctx, into, opts...)
}

// Leads implements work.Peers.
func (p *process) Leads() bool { return time.Now().UnixNano() < p.leadsUntil.Load() }

// Living implements work.Peers.
func (p *process) Living() map[string]bool { return p.lease.Living() }

// dead returns whether the process has ended.
func (p *process) dead() bool { return p.killed.Err() != nil }

// end kills the process. Its goroutines can have no effect any more.
func (p *process) end() {
	p.w.note("%s is killed", p.id)
	p.kill(errKilled)
	p.w.actors.Go(func() { _ = p.engine.Stop(context.WithoutCancel(p.killed)) })
}

// watched are the kinds of the cache.
var watched = []string{"Pod", "Node", "ConfigMap", "PersistentVolumeClaim", "PersistentVolume", "StorageClass", "ResourceClaim", "CSINode", "CSIDriver", "BindPolicy", "BindTask", "Namespace"}

// watch begins the streams with all objects.
func (p *process) watch() {
	for _, s := range p.streams {
		s.wake = make(chan struct{}, 1)
	}
	for _, o := range everything(p.w.api) {
		for _, s := range p.streams {
			if s.kind == fakeapi.Kind(o) {
				p.apply(s, o, false)
			}
		}
	}
	for _, s := range p.streams {
		p.w.actors.Go(func() { p.follow(s) })
	}
}

// observe queues an event.
func (p *process) observe(o client.Object, deleted bool) {
	for _, s := range p.streams {
		if s.kind == fakeapi.Kind(o) && !p.dead() {
			p.queue(s, o, deleted)
		}
	}
}

// queue queues an event of a watch. The watch is sometimes up to ten seconds late.
func (p *process) queue(s *stream, o client.Object, deleted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if p.w.stormy() && now.After(s.behind) && p.dice.one(20) {
		s.behind = now.Add(p.dice.between(0, 10*time.Second))
	}
	at := now.Add(p.dice.between(0, 30*time.Millisecond))
	if s.behind.After(at) {
		at = s.behind
	}
	if at.Before(s.last) {
		at = s.last
	}
	s.last = at
	s.queue = append(s.queue, event{object: o, deleted: deleted, at: at})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (p *process) follow(s *stream) {
	for {
		s.mu.Lock()
		var next event
		if len(s.queue) > 0 {
			next, s.queue = s.queue[0], s.queue[1:]
		}
		s.mu.Unlock()
		if next.object == nil {
			select {
			case <-s.wake:
				continue
			case <-p.killed.Done():
				return
			}
		}
		timer := time.NewTimer(time.Until(next.at))
		select {
		case <-timer.C:
			if p.awake() {
				p.sleep(p.killed, p.dice.between(0, 10*time.Second)) // The watch begins again.
			}
			p.apply(s, next.object, next.deleted)
		case <-p.killed.Done():
			timer.Stop()
			return
		}
	}
}

// apply changes the cache, unless it has a later version. The cache has pods without a node, and ConfigMaps of Prebind.
func (p *process) apply(s *stream, o client.Object, deleted bool) {
	if s.selection != nil {
		s.selection.apply(o, deleted)
		return
	}
	if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		deleted = true
	}
	if _, ok := o.(*corev1.ConfigMap); ok && o.GetNamespace() != system {
		return
	}
	was, found := o.DeepCopyObject().(client.Object)
	if found {
		found = fakeapi.Read(p.cache, was) == nil
	}
	if found && versionOf(was) > versionOf(o) {
		return
	}
	switch {
	case deleted:
		p.cache.Remove(o)
	default:
		p.cache.Put(o)
	}
	if h := p.handlers[fakeapi.Kind(o)]; h != nil {
		switch {
		case deleted:
			h.OnDelete(o)
		case found:
			h.OnUpdate(was, o)
		default:
			h.OnAdd(o, false)
		}
	}
	p.changes.Wake(o)
}

func versionOf(o client.Object) int {
	n, err := strconv.Atoi(o.GetResourceVersion())
	if err != nil {
		return 0
	}
	return n
}

// step is a request of the process to the API server. In the storm, requests fail, hang, succeed without an answer, or take
// effect up to 50 s later, and the process can be killed at each of them.
func (p *process) step(ctx context.Context, call fakeapi.Call, do func() error) error {
	p.awake()
	defer p.awake()
	if p.dead() {
		return errKilled
	}
	p.count(call)
	takes := p.dice.between(time.Millisecond, 20*time.Millisecond)
	if p.slow() {
		takes = p.dice.between(time.Second, 10*time.Second)
	}
	if !p.sleep(ctx, takes) {
		return p.ended(ctx)
	}
	if !p.w.stormy() {
		return do()
	}
	undirected := p.w.follower.Load() == nil // A directed bind would rarely live long enough.
	switch n := p.dice.below(100); {
	case n == 0 && undirected && (p.w.deadly && p.dice.one(3) || p.dice.one(40)):
		p.end()
		if p.dice.one(2) {
			_ = do() // The request was on its way.
		}
		return errKilled
	case n < 4:
		return apierrors.NewServiceUnavailable("overloaded")
	case n < 6:
		// The answer arrives when the context may have ended.
		err := do()
		p.sleep(p.killed, p.dice.between(0, lateAnswer))
		return err
	case n < 7:
		err := do()
		p.w.note("%s: %s has no answer: %v", p.id, call, err)
		return io.ErrUnexpectedEOF
	case n < 9 && (call.Kind == "ConfigMap" || call.Kind == "BindTask") && undirected && p.dice.one(2):
		// The machine is suspended between the write of a bind and its answer.
		err := do()
		p.w.actors.Go(func() { p.suspend(p.dice.between(30*time.Second, 4*time.Minute)) })
		p.sleep(p.killed, time.Millisecond)
		return err
	case n < 9:
		// etcd is slow. The client gives up, and the write takes effect later.
		late := p.dice.between(0, 50*time.Second)
		p.w.note("%s: %s takes %s", p.id, call, late)
		done := make(chan error, 1)
		p.w.actors.Go(func() {
			p.w.pause(late)
			done <- do()
		})
		limit, cancel := context.WithTimeout(ctx, 34*time.Second)
		defer cancel()
		select {
		case err := <-done:
			return err
		case <-limit.Done():
			return p.ended(limit)
		case <-p.killed.Done():
			return errKilled
		}
	}
	return do()
}

// slow returns whether the connection of the process is slow. Such a time begins at random.
func (p *process) slow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.w.stormy() && now.After(p.slowUntil.Add(10*time.Second)) && p.dice.one(50) {
		p.slowUntil = now.Add(p.dice.between(0, time.Minute))
	}
	return now.Before(p.slowUntil)
}

// count checks that the replica does not repeat requests in a loop.
func (p *process) count(call fakeapi.Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if second := time.Now().Truncate(time.Second); !second.Equal(p.second) {
		p.second, p.rate = second, map[string]int{}
	}
	p.rate[call.String()]++
	if p.rate[call.String()] == maxRate {
		p.w.problem("%s sends %d requests in a second: %s", p.id, maxRate, call)
	}
}

func (p *process) ended(ctx context.Context) error {
	if p.dead() {
		return errKilled
	}
	return context.Cause(ctx)
}

// sleep returns false if the context or the process ends first.
func (p *process) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-p.killed.Done():
		return false
	}
}

// everything returns all objects of the API server.
func everything(s *fakeapi.Server) []client.Object {
	var all []client.Object
	for _, list := range [][]client.Object{
		objects(fakeapi.All(s, &corev1.Pod{})), objects(fakeapi.All(s, &corev1.Node{})), objects(fakeapi.All(s, &corev1.ConfigMap{})),
		objects(fakeapi.All(s, &corev1.PersistentVolumeClaim{})), objects(fakeapi.All(s, &corev1.PersistentVolume{})),
		objects(fakeapi.All(s, &storagev1.StorageClass{})), objects(fakeapi.All(s, &storagev1.CSINode{})), objects(fakeapi.All(s, &storagev1.CSIDriver{})),
		objects(fakeapi.All(s, &resourcev1.ResourceClaim{})), objects(fakeapi.All(s, &v1alpha1.BindPolicy{})), objects(fakeapi.All(s, &v1alpha1.BindTask{})), objects(fakeapi.All(s, &corev1.Namespace{})),
	} {
		all = append(all, list...)
	}
	return all
}

func objects[T client.Object](all []T) []client.Object {
	var list []client.Object
	for _, o := range all {
		list = append(list, o)
	}
	return list
}
