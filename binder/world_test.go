// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/mutation"
	"github.com/prebind/prebind/mutators"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/unrecorded"
)

// world is a fixture whose plugins decide by facts, and that keeps a log of the calls.
type world struct {
	*fixture
	unrecorded.Recorder
	mu    sync.Mutex
	facts map[string]bool
	log   []string
	term  int64
	// lost says that the replica does not hold its lease.
	lost bool
}

const nodeName = "node-a"

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

// unset removes a fact from the cache.
func (w *world) unset(fact string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.facts, fact)
}

func (w *world) changed() { w.o.Changes.Wake(w.pod) }

// bound makes the pod bound to the node.
func (w *world) bound(node string) {
	fakeapi.Change(w.server, w.pod, "", func(pod *corev1.Pod) { pod.Spec.NodeName = node })
}

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
	settings := w.o.Settings
	settings.PreBindTimeout, settings.Plugins = p.budget, p.plugins
	c := &call{
		Engine: w.Engine, settings: settings, began: time.Now(),
		Request: Request{
			Pod: types.NamespacedName{Namespace: w.pod.Namespace, Name: w.pod.Name}, Binding: gen.Binding(w.pod, p.node),
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
	w := &world{facts: map[string]bool{}}
	in(t, func(o *Options) {
		o.Recorder, o.Settings.Mutators = w, mutation.NewChain([]mutators.Mutator{w}, nil)
		o.Settings.Hold, o.Settings.MaxHolds = 8*time.Second, 100
		o.Term = func() (int64, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.term, !w.lost
		}
	}, func(t *testing.T, s *fixture) {
		w.fixture = s
		test(t, w)
	})
}

// runInWorld is inWorld in a test with the name.
func runInWorld(t *testing.T, name string, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inWorld(t, test) })
}
