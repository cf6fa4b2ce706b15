// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/loop"
	loopframework "github.com/prebind/prebind/binder/loop/framework"
	"github.com/prebind/prebind/binder/loop/work"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// Looped is a plugin of package loop with an API server in memory, and with a cache that is always up to date. Like Cluster, it
// wakes binds for the changes of objects that the plugin watches. Use Post in a bubble of testing/synctest.
type Looped struct {
	*fakeapi.Server
	Handle framework.Handle
	Plugin loopframework.Plugin
	// Loop runs the plugin as the engine does.
	Loop *loop.Loop
	// Hold is how long a call waits. Budget is that of each bind.
	Hold, Budget time.Duration

	first map[work.Key]time.Time
}

// LoopOptions describe the plugin.
type LoopOptions struct {
	New        func(h framework.Handle) (loopframework.Plugin, error)
	Watches    []client.Object
	Selections []framework.Selection
}

// NewLooped builds the plugin. The test fails if the plugin reads from the cache what the options do not have.
func NewLooped(t testing.TB, o LoopOptions, objects ...client.Object) *Looped {
	t.Helper()
	kinds := sets.New("Pod", "Node")
	for _, example := range o.Watches {
		kinds.Insert(framework.KindOf(example))
	}
	selected := &selections{registered: map[string]framework.Selection{}, added: map[string]framework.Selection{}}
	for _, s := range o.Selections {
		selected.registered[s.Name] = s
	}
	c := &Looped{Server: fakeapi.New(objects...), Hold: time.Hour, Budget: time.Hour, first: map[work.Key]time.Time{}}
	connection, changes := c.Connect(), framework.NewHub()
	c.OnChange(func(o client.Object, _ bool) {
		if kinds.Has(framework.KindOf(o)) {
			changes.Changed(framework.RefTo(o, o.GetNamespace(), o.GetName()))
		}
		for _, s := range selected.all() {
			if framework.KindOf(o) == framework.KindOf(s.Example) {
				changes.Changed(s.Changed(s.ValueOf(o)))
			}
		}
	})
	c.Handle = framework.Handle{
		Cached: &watched{Reader: selecting{c.Cache()}, t: t, kinds: kinds, selections: selected}, Live: selecting{connection},
		Writer: connection, Status: connection,
		Changes: changes, Clock: clock.RealClock{}, Namespace: "prebind-system", Selections: selected,
	}
	var err error
	if c.Plugin, err = o.New(c.Handle); err != nil {
		t.Fatal(err)
	}
	set := work.NewSet(work.Options{
		Runner: outcomes{c}, Replica: "test", Changes: changes, Clock: clock.RealClock{}, Ended: func(bool) {},
		Term: func() (int64, bool) { return 1, true },
	})
	t.Cleanup(func() { _ = set.Stop(context.WithoutCancel(t.Context())) })
	c.Loop = &loop.Loop{
		CachedFor: func(string) framework.Reader { return c.Handle.Cached }, Changes: changes, Work: set, Replica: "test",
		Tracker: runner.Untracked{}, Clock: clock.RealClock{}, Jitter: func() float64 { return 0 },
	}
	return c
}

// Context returns the context of a bind of the pod to the node.
func (c *Looped) Context(pod *corev1.Pod, node *corev1.Node, options ...gen.BindingOption) *loopframework.BindContext {
	now := clock.RealClock{}.Now()
	return &loopframework.BindContext{Pod: pod, Node: node, Binding: gen.Binding(pod, node.Name, options...), Attempt: "test-1", Now: now, Since: now}
}

// PreFlight calls SetupBindContextExtension and PreFlight of the plugin.
func (c *Looped) PreFlight(ctx context.Context, bc *loopframework.BindContext) (loopframework.Verdict, error) {
	if extender, ok := c.Plugin.(loopframework.BindContextExtender); ok {
		if err := extender.SetupBindContextExtension(ctx, c.Handle.Cached, bc); err != nil {
			return loopframework.Verdict{}, err
		}
	}
	return c.Plugin.PreFlight(bc)
}

// Post posts a Binding, and returns the outcome. It does not bind the pod.
func (c *Looped) Post(ctx context.Context, pod *corev1.Pod, node string, options ...gen.BindingOption) loop.Outcome {
	key := work.Key{Pod: pod.UID, Node: node}
	if _, ok := c.first[key]; !ok {
		c.first[key] = c.Loop.Clock.Now()
	}
	return c.Loop.Run(ctx, loop.Bind{
		Key: key, Pod: client.ObjectKeyFromObject(pod), Binding: gen.Binding(pod, node, options...), First: c.first[key],
		Draining: make(chan struct{}), Waits: func(*framework.Error) {},
		Look: func(ctx context.Context) (loop.View, *framework.Error) {
			nowPod, err := framework.Get(ctx, c.Handle.Cached, &corev1.Pod{}, pod.Namespace, pod.Name)
			if nowPod == nil {
				return loop.View{}, framework.AsError(framework.Binder, framework.Stale(framework.Object{}, "no pod: %v", err))
			}
			nowNode, err := framework.Get(ctx, c.Handle.Cached, &corev1.Node{}, "", node)
			if nowNode == nil {
				return loop.View{}, framework.AsError(framework.Binder, framework.Refuse(framework.Object{}, "no node: %v", err))
			}
			return loop.View{Pod: nowPod, Node: nowNode, Plugins: []loopframework.Plugin{c.Plugin}, Budget: c.Budget}, nil
		},
		Hold:   func() (<-chan time.Time, bool) { return time.After(c.Hold), c.Hold > 0 },
		Answer: func(context.Context, loop.Ready) *framework.Error { return nil },
	})
}

// outcomes finds out whether pods were bound.
type outcomes struct{ c *Looped }

// StillPending implements work.Runner.
func (o outcomes) StillPending(ctx context.Context, name types.NamespacedName, uid types.UID) bool {
	pod, _ := o.LivePod(ctx, name)
	return framework.WhereaboutsOf(pod, uid, "") == framework.Pending
}

// LivePod implements work.Runner.
func (o outcomes) LivePod(ctx context.Context, name types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := o.c.Handle.Live.Get(ctx, name, pod)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return pod, err
}

// PostBind implements work.Runner.
func (outcomes) PostBind(ctx context.Context, p loopframework.PreBinder, bc *loopframework.BindContext) error {
	return p.PostBind(ctx, bc)
}

// RollBack implements work.Runner.
func (outcomes) RollBack(ctx context.Context, p loopframework.PreBinder, bc *loopframework.BindContext, _ *corev1.Pod) error {
	return p.PreBindRollBack(ctx, bc)
}
