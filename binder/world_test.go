// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/internal/notify"
	"github.com/prebind/prebind/internal/work"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/unrecorded"
)

// world is a replica, a pod and its nodes. Its state is guarded by mu.
type world struct {
	*Engine
	unrecorded.Recorder
	mu    sync.Mutex
	pod   *corev1.Pod
	facts map[string]bool
	log   []string
	term  int64
}

const nodeName = "node-a"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{pod: gen.Pod("web", gen.UID("u1")), facts: map[string]bool{}}
	chain := mutation.NewChain([]mutators.Mutator{w}, nil)
	w.Engine = New(Options{
		Options: work.Options{
			Cached: w, Live: w, Replica: "r", Changes: notify.NewHub(), Events: w, Recorder: w, Clock: clock.RealClock{},
			Term: func() (int64, bool) {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.term, true
			},
		},
		Settings: Settings{
			Mode: ModeEnforce, Mutators: chain, Hold: 8 * time.Second, MaxHolds: 100, PreBindTimeout: 10 * time.Minute, MaxPreBindTimeout: time.Hour,
		},
	})
	return w
}

func (w *world) record(words ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, strings.Join(words, " "))
}

func (w *world) said() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

func (w *world) is(fact string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.facts[fact]
}

// set changes a fact of the cache, and wakes binds.
func (w *world) set(fact string) {
	w.mu.Lock()
	w.facts[fact] = true
	w.mu.Unlock()
	w.changed()
}

func (w *world) changed() { w.o.Changes.Wake(w.live()) }

// bound makes the pod bound to the node.
func (w *world) bound(node string) {
	w.mu.Lock()
	w.pod = w.pod.DeepCopy()
	w.pod.Spec.NodeName = node
	w.mu.Unlock()
	w.changed()
}

func (w *world) live() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// Get implements client.Reader for the cache and the API server.
func (w *world) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Pod:
		w.live().DeepCopyInto(into)
	case *corev1.Node:
		gen.Node(key.Name).DeepCopyInto(into)
	}
	return nil
}

// List implements client.Reader.
func (*world) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// Eventf implements events.EventRecorder.
func (*world) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// AttemptEnded implements Recorder.
func (w *world) AttemptEnded(outcome string) { w.record("ended", outcome) }

// Name implements mutators.Mutator.
func (*world) Name() string { return "world" }

// Mutate implements mutators.Mutator.
func (w *world) Mutate(in mutators.Input) (mutators.Output, error) {
	w.record("answer", map[bool]string{true: "with attempt"}[in.Bind.Attempt != ""])
	return mutators.Output{}, nil
}

// posted is a call for the pod.
type posted struct {
	node    string
	plugins []framework.Plugin
	budget  time.Duration
	user    string
}

func (w *world) bind(node string, plugins ...framework.Plugin) posted {
	return posted{node: node, plugins: plugins, budget: 10 * time.Minute}
}

// run posts the Binding.
func (w *world) run(ctx context.Context, p posted) Decision {
	pod, settings := w.live(), w.o.Settings
	settings.PreBindTimeout = p.budget
	c := &call{
		Engine: w.Engine, settings: settings, plugins: participants(p.plugins), began: time.Now(),
		Request: Request{
			Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, Binding: gen.Binding(pod, p.node),
			User: authenticationv1.UserInfo{Username: p.user},
		},
	}
	return c.run(ctx)
}

// plugin is a PreBinder that is made of functions.
type plugin struct {
	name    string
	decide  func(bc *framework.BindContext) (framework.Verdict, error)
	preBind func(bc *framework.BindContext) error
	world   *world
}

func (p plugin) Name() string { return p.name }

func (p plugin) PreFlight(bc *framework.BindContext) (framework.Verdict, error) { return p.decide(bc) }

func (p plugin) PreBind(_ context.Context, bc *framework.BindContext) error {
	p.world.record(p.name, "PreBind")
	return p.preBind(bc)
}

func (p plugin) PreBindRollBack(context.Context, framework.Mark) error {
	p.world.record(p.name, "PreBindRollBack")
	return nil
}

func (p plugin) PostBind(context.Context, framework.Mark, *corev1.Pod) error {
	p.world.record(p.name, "PostBind")
	return nil
}

func (p plugin) Marks(context.Context) ([]framework.Mark, error) { return nil, nil }

func (p plugin) Reserve(*framework.BindContext) bool {
	p.world.record(p.name, "Reserve")
	return true
}

// waiter waits for a fact.
func (w *world) waiter(fact string) framework.Plugin {
	return plugin{name: "wait-" + fact, world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
		if w.is(fact) {
			return framework.Verdict{}, nil
		}
		return framework.Verdict{Wait: framework.Wait{For: fact}}, nil
	}}
}

// writer writes a fact, which the cache shows at once.
func (w *world) writer(fact string) framework.Plugin {
	return plugin{
		name: "write-" + fact, world: w,
		decide: func(*framework.BindContext) (framework.Verdict, error) {
			if w.is(fact) {
				return framework.Verdict{}, nil
			}
			return framework.Verdict{Writes: []string{"writes " + fact}}, nil
		},
		preBind: func(*framework.BindContext) error {
			w.set(fact)
			return nil
		},
	}
}

// rejecter rejects the bind until there is the fact.
func (w *world) rejecter(fact string) plugin {
	return plugin{name: "strict", world: w, decide: func(*framework.BindContext) (framework.Verdict, error) {
		if w.is(fact) {
			return framework.Verdict{}, nil
		}
		return framework.Verdict{}, framework.Refuse(framework.Object{}, "broken")
	}}
}

// inWorld runs the test in a bubble, and stops the replica at its end.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		test(t, w)
		require.NoError(t, w.Stop(t.Context()))
	})
}

// runInWorld is inWorld in a test with the name.
func runInWorld(t *testing.T, name string, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inWorld(t, test) })
}
