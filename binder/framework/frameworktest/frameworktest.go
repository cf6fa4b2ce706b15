// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package frameworktest tests PreBind plugins without a cluster: with a fake API server, and with the engine.
package frameworktest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/unrecorded"
)

// Cluster is a plugin with an API server in memory, and with a cache that is always up to date.
//
//   - Put(object) creates or replaces an object.
//   - fakeapi.Change(cluster.Server, object, manager, func) changes the stored object with the
//     kind, namespace and name of the given one, as the field manager.
//   - Remove(object) deletes an object.
//   - fakeapi.Get(cluster.Server, object) returns the stored object, and Writes() what the
//     plugin has written.
//
// Each of the first three wakes the binds that wait for the object, if Registration.Watches contains its
// kind, or if it is in one of Registration.Selections, or in one that the plugin has added with
// Handle.Select. A plugin with framework.Starter is not started. A Get with a Selection ignores its Namespace, Labels
// and Fields. A Transform is not applied, and a Handler is not called.
type Cluster struct {
	*fakeapi.Server
	// Handle is what Registration.New got.
	Handle framework.Handle
	// Plugin is what Registration.New returned.
	Plugin framework.Plugin
	// Changes wakes binds that wait.
	Changes *notify.Hub
	// Hold is how long a call waits. Budget is that of each bind. Both are an hour by default. Set them before Post.
	Hold, Budget time.Duration

	t      testing.TB
	engine func() *binder.Engine
}

// New builds the plugin with the arguments, nil for the defaults, and returns it with a cluster
// of the objects. The test fails if the plugin does not have the name of the registration, or if
// it reads a kind or a selection from the cache that the registration does not return: such a read
// fails in Prebind, and nothing would wake the wait for it.
func New(t testing.TB, r framework.Registration, arguments framework.Arguments, objects ...client.Object) *Cluster {
	t.Helper()
	if arguments == nil && r.Arguments != nil {
		arguments = r.Arguments()
	}
	kinds := sets.New("Pod", "Node")
	for _, example := range r.Watches {
		kinds.Insert(framework.KindOf(example))
	}
	c := &Cluster{Server: fakeapi.New(objects...), Changes: notify.NewHub(), Hold: time.Hour, Budget: time.Hour, t: t}
	c.engine = sync.OnceValue(c.build)
	connection, changes := c.Connect(), c.Changes
	selected := &selections{registered: map[string]framework.Selection{}, added: map[string]framework.Selection{}}
	if r.Selections != nil {
		for _, s := range r.Selections("prebind-system", arguments) {
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
			selected.registered[s.Name] = s
		}
	}
	c.OnChange(func(o client.Object, _ bool) {
		if kinds.Has(framework.KindOf(o)) {
			changes.Wake(o)
		}
		for _, s := range selected.all() {
			if framework.KindOf(o) == framework.KindOf(s.Example) {
				changes.Changed(notify.Selected(s, s.ValueOf(o)))
				changes.Wake(o)
			}
		}
	})
	c.Handle = framework.Handle{
		Cached: &watched{Reader: c.Cache(), t: t, kinds: kinds, selections: selected}, Live: connection,
		Writer: connection, Status: connection,
		Wake: changes.Wake, Clock: clock.RealClock{}, Events: &events.FakeRecorder{}, Namespace: "prebind-system", Select: selected.Select, Keep: selected.Keep,
		Replicas: func() int { return 1 }, Leads: func() bool { return true },
	}
	var err error
	if c.Plugin, err = r.New(c.Handle, arguments); err != nil {
		t.Fatalf("New of the plugin %s: %v", r.Name, err)
	}
	if name := c.Plugin.Name(); name != r.Name {
		t.Errorf("the plugin %q must be named as registered, got %q", r.Name, name)
	}
	return c
}

// Around returns a Cluster of the server and a plugin that was built with the handle, whose Wake is that of the hub.
func Around(t testing.TB, server *fakeapi.Server, hub *notify.Hub, h framework.Handle, p framework.Plugin) *Cluster {
	t.Helper()
	c := &Cluster{Server: server, Changes: hub, Handle: h, Plugin: p, Hold: time.Hour, Budget: time.Hour, t: t}
	c.engine = sync.OnceValue(c.build)
	return c
}

// build builds the engine.
func (c *Cluster) build() *binder.Engine {
	chain := mutation.NewChain(nil, nil)
	e := binder.New(binder.Options{
		Options: work.Options{
			Cached: c.Handle.Cached, Live: c.Handle.Live, Replica: "test", Changes: c.Changes, Term: func() (int64, bool) { return 0, true },
			Events: &events.FakeRecorder{}, Recorder: unrecorded.Recorder{}, Clock: clock.RealClock{},
		},
		Settings: binder.Settings{
			Mode: binder.ModeEnforce, Mutators: chain, Plugins: []framework.Plugin{c.Plugin}, Hold: c.Hold, MaxHolds: 1000,
			PreBindTimeout: c.Budget, MaxPreBindTimeout: c.Budget,
		},
	})
	c.t.Cleanup(func() { _ = e.Stop(context.WithoutCancel(c.t.Context())) })
	return e
}

// watched is a cache that holds only some kinds and selections, and of all pods those without a node, as that of Prebind.
type watched struct {
	client.Reader
	t          testing.TB
	kinds      sets.Set[string]
	selections *selections
}

// Get implements client.Reader.
func (w *watched) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	for _, o := range opts {
		if s, ok := o.(framework.Selection); ok {
			w.checkSelection(s)
			return w.Reader.Get(ctx, key, into, opts...)
		}
	}
	w.check(into)
	err := w.Reader.Get(ctx, key, into, opts...)
	if pod, ok := into.(*corev1.Pod); ok && err == nil && pod.Spec.NodeName != "" {
		return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
	}
	return err
}

// List implements client.Reader.
func (w *watched) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if s, ok := framework.SelectedBy(opts); ok {
		w.checkSelection(s.Selection)
		return w.Reader.List(ctx, into, opts...)
	}
	w.check(into)
	err := w.Reader.List(ctx, into, opts...)
	if pods, ok := into.(*corev1.PodList); ok {
		pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Spec.NodeName != "" })
	}
	return err
}

func (w *watched) checkSelection(s framework.Selection) {
	if _, known := w.selections.all()[s.Name]; !known {
		w.t.Errorf("the plugin reads the selection %s, and neither Registration.Selections returns it nor Select has added it", s.Name)
	}
}

func (w *watched) check(o runtime.Object) {
	if kind := framework.KindOf(o); !w.kinds.Has(kind) {
		w.t.Errorf("the plugin reads %s, and Registration.Watches does not contain this kind", kind)
	}
}

// selections contains selections by name. A selection ends at once.
type selections struct {
	mu                sync.Mutex
	registered, added map[string]framework.Selection
}

func (s *selections) all() map[string]framework.Selection {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.registered)
	maps.Copy(all, s.added)
	return all
}

// Select is framework.Handle.Select.
func (s *selections) Select(_ context.Context, want framework.Selection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.added[want.Name] = want
	return want.Check()
}

// Keep is framework.Handle.Keep.
func (s *selections) Keep(names sets.Set[string]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.added, func(name string, _ framework.Selection) bool { return !names.Has(name) })
}

// IsKind returns whether err is, or wraps, a *framework.Error of this kind. It may be the nil Err of a decision.
func IsKind(err error, kind framework.Kind) bool {
	var e *framework.Error
	return errors.As(err, &e) && e != nil && e.Kind == kind
}

// Context returns the context of a bind of the pod to the node.
func (c *Cluster) Context(pod *corev1.Pod, node *corev1.Node, options ...gen.BindingOption) *framework.BindContext {
	now := clock.RealClock{}.Now()
	return &framework.BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, node.Name, options...), Attempt: "test-1", Now: now, Since: now}
}

// PreFlight calls SetupBindContextExtension and PreFlight of the plugin, as the engine does: it returns a panic as an error, and a nil
// *framework.Error as nil.
func (c *Cluster) PreFlight(ctx context.Context, bc *framework.BindContext) (framework.Verdict, error) {
	if extender, ok := c.Plugin.(framework.BindContextExtender); ok {
		if err := work.Contain(ctx, func() error { return extender.SetupBindContextExtension(ctx, c.Handle.Cached, bc) }); err != nil {
			return framework.Verdict{}, err
		}
	}
	var verdict framework.Verdict
	err := work.Contain(ctx, func() (err error) {
		verdict, err = c.Plugin.PreFlight(bc)
		return err
	})
	return verdict, err
}

// Post posts a Binding, and returns the decision. It does not bind the pod.
func (c *Cluster) Post(ctx context.Context, pod *corev1.Pod, node string, options ...gen.BindingOption) binder.Decision {
	return c.engine().Bind(ctx, binder.Request{Pod: client.ObjectKeyFromObject(pod), Binding: gen.Binding(pod, node, options...)})
}

// Running is a call, such as Post, that runs in a bubble of testing/synctest.
type Running struct{ result chan error }

// Start calls f, and returns when f waits or has ended.
func Start(f func() error) *Running {
	r := &Running{result: make(chan error, 1)}
	go func() { r.result <- f() }()
	synctest.Wait()
	return r
}

// Ended returns whether f has ended, and its error, after f has handled all changes. Call it
// no more once it has returned true.
func (r *Running) Ended() (bool, error) {
	synctest.Wait()
	select {
	case err := <-r.result:
		return true, err
	default:
		return false, nil
	}
}
