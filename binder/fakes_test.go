// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// store is a cache, or an API server, of pods and nodes that counts its reads.
type store struct {
	*fakeapi.Connection
	server *fakeapi.Server
	reads  atomic.Int32

	mu sync.Mutex
	// err, if set, is returned by every read.
	err error
}

func holding(objects ...client.Object) *store {
	s := &store{server: fakeapi.New(objects...)}
	s.Connection = s.server.Connect()
	s.Before = func(call fakeapi.Call) error {
		if call.Verb != "get" {
			return fmt.Errorf("unexpected call: %s", call)
		}
		s.reads.Add(1)
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.err
	}
	return s
}

// brokenStore is a store whose reads fail.
func brokenStore(err error) *store {
	s := holding()
	s.fail(err)
	return s
}

// set replaces what the store holds.
func (s *store) set(objects ...client.Object) {
	kept := map[string]bool{}
	for _, o := range objects {
		s.server.Put(o)
		kept[fakeapi.Kind(o)+client.ObjectKeyFromObject(o).String()] = true
	}
	remove := func(o client.Object) {
		if !kept[fakeapi.Kind(o)+client.ObjectKeyFromObject(o).String()] {
			s.server.Remove(o)
		}
	}
	for _, pod := range fakeapi.All(s.server, &corev1.Pod{}) {
		remove(pod)
	}
	for _, node := range fakeapi.All(s.server, &corev1.Node{}) {
		remove(node)
	}
}

// fail makes every read return err, until it is called with nil.
func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// plugin is a PreBinder with replaceable methods, whose calls are counted.
type plugin struct {
	name      string
	preBind   func(ctx context.Context, bc *framework.BindContext) error
	rollBack  func(ctx context.Context, bc *framework.BindContext) error
	preBinds  atomic.Int32
	rollBacks atomic.Int32
}

func (p *plugin) Name() string { return p.name }

func (p *plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	p.preBinds.Add(1)
	if p.preBind == nil {
		return nil
	}
	return p.preBind(ctx, bc)
}

func (p *plugin) PreBindRollBack(ctx context.Context, bc *framework.BindContext) error {
	p.rollBacks.Add(1)
	if p.rollBack == nil {
		return nil
	}
	return p.rollBack(ctx, bc)
}

// checker is a plugin with a PreFlight.
type checker struct {
	plugin
	preFlight  func(bc *framework.BindContext) (framework.Next, error)
	preFlights atomic.Int32
}

func (c *checker) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	c.preFlights.Add(1)
	if c.preFlight == nil {
		return framework.Run, nil
	}
	return c.preFlight(bc)
}

// claim is what the waiting plugins of these tests wait for.
var claim = framework.Object{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data"}

// waiter is a plugin that waits for the error to return, or for the end of its context.
type waiter struct {
	plugin
	release chan error
}

func newWaiter() *waiter {
	w := &waiter{plugin: plugin{name: "waiter"}, release: make(chan error)}
	w.preBind = func(ctx context.Context, bc *framework.BindContext) error {
		bc.Waiting(framework.Waiting{Object: claim, For: "the volume of the test"})
		select {
		case err := <-w.release:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return w
}

// mutatorFunc is a mutator with the name "test".
type mutatorFunc func(in mutators.Input) (mutators.Output, error)

func (mutatorFunc) Name() string { return "test" }

func (f mutatorFunc) Mutate(in mutators.Input) (mutators.Output, error) { return f(in) }

func chain(t testing.TB, list ...mutators.Mutator) *mutators.Chain {
	t.Helper()
	c, err := mutators.NewChain(mutators.Options{Mutators: list})
	require.NoError(t, err)
	return c
}

// The pod and the node of most tests.
var (
	thePod  = gen.Pod("web", gen.UID("pod-1"))
	theNode = gen.Node("node-a")
)

func requestFor(b *corev1.Binding) Request {
	return Request{Pod: types.NamespacedName{Namespace: b.Namespace, Name: b.Name}, Binding: b}
}

func theRequest() Request { return requestFor(gen.Binding(thePod, "node-a", gen.UID("pod-1"))) }

const testHold = 5 * time.Second

// newTestEngine returns an engine whose cache holds thePod and theNode, with the real clock.
func newTestEngine(t testing.TB, change func(o *Options)) *Engine {
	t.Helper()
	o := Options{
		Cached: holding(thePod, theNode),
		Live:   holding(thePod, theNode),
		Settings: Settings{
			Mode:              ModeEnforce,
			Mutators:          chain(t),
			Hold:              testHold,
			MaxHolds:          32,
			PreBindTimeout:    10 * time.Minute,
			MaxPreBindTimeout: 20 * time.Minute,
		},
		Replica: "here",
		Changes: framework.NewHub(),
		Events:  &recorder{},
		Clock:   clock.RealClock{},
	}
	if change != nil {
		change(&o)
	}
	e, err := New(o)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, e.Stop(context.WithoutCancel(t.Context()))) })
	return e
}

// engineWith is newTestEngine with these plugins and no mutator.
func engineWith(t *testing.T, plugins ...framework.PreBinder) *Engine {
	t.Helper()
	return newTestEngine(t, func(o *Options) { o.Settings.Plugins = plugins })
}

// journal is a list of events, in order.
type journal struct {
	mu   sync.Mutex
	list []string
}

func (e *journal) add(event string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

func (e *journal) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.list...)
}

// recorder keeps events as "pod type reason: note".
type recorder struct{ journal }

func (r *recorder) Eventf(regarding, _ runtime.Object, eventType, reason, _, note string, args ...any) {
	name := ""
	if pod, ok := regarding.(*corev1.Pod); ok {
		name = pod.Name
	}
	r.add(name + " " + eventType + " " + reason + ": " + fmt.Sprintf(note, args...))
}
