// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/notify"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/seeds"
)

// TestModel runs replicas with outdated caches against one API server. After every step it
// checks that no device is granted twice. At each request of a replica, steps of others,
// errors, lost responses, late writes and crashes can intervene.
func TestModel(t *testing.T) {
	const steps = 250
	for _, seed := range seeds.Of(t, 15) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			m := newModel(t, seed)
			for range steps {
				m.step()
			}
			m.settle()
		})
	}
}

// flightTakes is the maximum time that the API server needs for an allowed bind.
const flightTakes = 34 * time.Second

type model struct {
	t        *testing.T
	rng      *rand.Rand
	s        *server
	clock    *clocktesting.FakeClock
	replicas []*replica
	// flights contains binds that were allowed.
	flights []*flight
	// late contains writes that the API server has not finished, although the caller has
	// given up.
	late []func()
	// pods contains all pods ever created. A replica can still see one of them as pending.
	pods []*corev1.Pod
	// busy contains the replicas whose step is interrupted.
	busy    []*replica
	calm    bool
	counter int
	// locks is the percentage of binds that request the lock, and last is the number of pods
	// that are being bound at a time.
	locks, last int
	trace       []string
}

// replica simulates an engine.
type replica struct {
	id       string
	plugin   *Plugin
	cached   *lagging
	attempts []*attempt
	// cancel ends the running PreBind.
	cancel context.CancelCauseFunc
	// cutOff: the replica receives calls but cannot reach the API server. The others
	// consider it dead.
	cutOff bool
}

// attempt is an attempt for a pod and a node.
type attempt struct {
	id       string
	pod      *corev1.Pod
	node     string
	bc       *framework.BindContext
	ran      bool
	reported bool
}

type flight struct {
	attempt string
	bc      *framework.BindContext
	ask     ask
	since   time.Time
}

// crash is the panic that ends a replica.
type crash struct{}

var errTimeout = apierrors.NewTimeoutError("lost", 1)

func newModel(t *testing.T, seed uint64) *model {
	m := &model{
		t: t, rng: rand.New(rand.NewPCG(seed, seed)), //nolint:gosec // The seed makes the test repeatable.
		s: newServer(t), clock: clocktesting.NewFakeClock(noon), locks: 15, last: 8,
	}
	if m.chance(50) {
		m.locks, m.last = 60, 3
	}
	for range 3 {
		m.replicas = append(m.replicas, m.newReplica())
	}
	return m
}

func (m *model) name(prefix string) string {
	m.counter++
	return prefix + strconv.Itoa(m.counter)
}

func (m *model) newReplica() *replica {
	r := &replica{id: m.name("r"), cached: newLagging(m.s)}
	l := &line{server: m.s}
	l.before = func(verb string, o any) error { return m.cut(r, verb, o, false) }
	l.after = func(verb string, o any) error { return m.cut(r, verb, o, true) }
	r.plugin = pluginOn(m.s, r.cached, l, notify.NewHub(), func(h *framework.Handle, a *Arguments) {
		h.Clock = m.clock
		a.NodeLockTimeout.Duration = 3 * flightTakes
	})
	return r
}

func (m *model) chance(percent int) bool { return m.rng.IntN(100) < percent }

func (m *model) logf(format string, args ...any) {
	m.trace = append(m.trace, strings.Repeat("  ", len(m.busy))+fmt.Sprintf(format, args...))
}

func (m *model) failf(format string, args ...any) {
	m.t.Helper()
	m.t.Logf("the last steps:\n%s", strings.Join(m.trace[max(0, len(m.trace)-60):], "\n"))
	for _, node := range nodes {
		if object := m.s.object(node); object != nil {
			m.t.Logf("%s: %v", node, object.Data)
		}
	}
	m.t.Fatalf(format, args...)
}

// cut runs before and after each request of a replica.
func (m *model) cut(r *replica, verb string, o any, after bool) error {
	if m.calm {
		return nil
	}
	m.interleave()
	record, write := o.(*corev1.ConfigMap)
	write = write && (verb == "create" || verb == "update")
	switch {
	case r.cutOff:
		return errTimeout
	case m.chance(1):
		m.logf("%s ends, after=%t %s", r.id, after, verb)
		panic(crash{})
	case m.chance(2):
		m.logf("%s fails, after=%t %s", r.id, after, verb)
		return errTimeout
	case write && !after && m.chance(4):
		m.logf("%s: %s is delayed", r.id, verb)
		copied := record.DeepCopy()
		m.late = append(m.late, func() {
			if verb == "create" {
				_ = m.s.Create(m.t.Context(), copied) // The caller has given up.
			} else {
				_ = m.s.Update(m.t.Context(), copied) // The caller has given up.
			}
		})
		return errTimeout
	}
	return nil
}

// interleave runs steps of other replicas.
func (m *model) interleave() {
	for len(m.busy) < 3 && m.chance(20) {
		m.step()
	}
}

var nodes = []string{"node-a", "node-b"}

// step runs one random step.
func (m *model) step() {
	switch n := m.rng.IntN(100); {
	case n < 12:
		m.newPod()
	case n < 45:
		m.by((*model).call)
	case n < 55:
		m.land()
	case n < 65:
		m.by((*model).outcome)
	case n < 74:
		m.end()
	case n < 82:
		r := m.replicas[m.rng.IntN(len(m.replicas))]
		require.NoError(m.t, r.cached.load(m.t.Context()))
	case n < 89:
		m.by((*model).sweep)
	case n < 93:
		m.by(func(m *model, r *replica) {
			m.logf("%s tidies", r.id)
			_ = r.plugin.Tidy(m.t.Context()) // Tidy runs again later.
		})
	case n < 96 && len(m.late) > 0:
		i := m.rng.IntN(len(m.late))
		m.logf("a delayed write takes effect")
		m.late[i]()
		m.late = slices.Delete(m.late, i, i+1)
	case n < 97 && m.chance(50):
		m.replicas[m.rng.IntN(len(m.replicas))].cutOff = true
	case n < 98 && len(m.busy) == 0:
		m.loseRecord()
	case n >= 98:
		m.clock.Step(time.Duration(m.rng.IntN(40)) * time.Second)
	}
	if len(m.busy) == 0 && m.chance(20) {
		// The plugin cannot handle a replica that comes back while its marks are swept.
		for _, r := range m.replicas {
			r.cutOff = false
		}
	}
	m.check()
}

// by runs a step of an idle replica. The replica can crash in it.
func (m *model) by(do func(*model, *replica)) {
	var idle []int
	for i, r := range m.replicas {
		if !slices.Contains(m.busy, r) {
			idle = append(idle, i)
		}
	}
	if len(idle) == 0 {
		return
	}
	i := idle[m.rng.IntN(len(idle))]
	r, depth := m.replicas[i], len(m.busy)
	m.busy = append(m.busy, r)
	defer func() {
		m.busy = m.busy[:depth]
		if caught := recover(); caught != nil {
			if _, ok := caught.(crash); !ok {
				panic(caught)
			}
			m.replicas[i] = m.newReplica()
		}
	}()
	do(m, r)
}

func (m *model) newPod() {
	name := m.name("p")
	if m.chance(20) && len(m.pods) > 0 {
		// The name of an earlier pod.
		name = m.pods[m.rng.IntN(len(m.pods))].Name
	}
	pod := gen.Pod(name, gen.UID(types.UID(m.name("uid"))))
	if m.chance(30) {
		gen.Annotation(gpu, m.ids())(&pod.ObjectMeta)
	}
	if err := m.s.Create(m.t.Context(), pod); err == nil {
		m.logf("pod %s %s", name, pod.UID)
		m.pods = append(m.pods, pod)
	}
}

func (m *model) ids() string {
	all := []string{"G1", "G2", "G3", "G1:0.5", "G2:0.5", "G3:0.5", "G1,G2", "G1:0.5,G2:0.5"}
	return all[m.rng.IntN(len(all))]
}

func (m *model) live(pod *corev1.Pod) *corev1.Pod {
	now := &corev1.Pod{}
	if err := m.s.Get(m.t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
		return nil
	}
	return now
}

// call simulates a Binding for one of the last pods.
func (m *model) call(r *replica) {
	if len(m.pods) == 0 {
		return
	}
	last := min(len(m.pods), m.last)
	pod, node := m.pods[len(m.pods)-1-m.rng.IntN(last)], nodes[m.rng.IntN(2)]
	if now := m.live(pod); (now == nil || now.UID != pod.UID || now.Spec.NodeName != "") && m.chance(70) {
		return // Replicas are rarely that far behind.
	}
	var a *attempt
	for _, other := range r.attempts {
		if other.pod.UID == pod.UID && other.node == node {
			a = other
		}
	}
	fresh := a == nil
	if fresh {
		a = &attempt{id: m.name(r.id + "-"), pod: pod, node: node}
	}
	bc := bindOf(pod, a.id)
	bc.Node, bc.Binding.Target.Name = gen.Node(node), node
	if a.bc != nil && m.chance(60) {
		bc.Binding = a.bc.Binding.DeepCopy() // The scheduler repeats the Binding.
	} else {
		m.choose(bc)
	}
	m.logf("%s: %s binds %s to %s: %v", r.id, a.id, pod.UID, node, bc.Binding.Annotations)
	if fresh {
		r.attempts = append(r.attempts, a)
	}
	m.round(r, a, bc)
}

// choose simulates the plugin of a scheduler.
func (m *model) choose(bc *framework.BindContext) {
	if m.chance(80) || bc.Pod.Annotations[gpu] == "" {
		gen.Annotation(gpu, m.ids())(&bc.Binding.ObjectMeta)
	}
	if m.chance(m.locks) {
		gen.Annotation(lockIt, "true")(&bc.Binding.ObjectMeta)
	}
}

// round simulates the engine for one call.
func (m *model) round(r *replica, a *attempt, bc *framework.BindContext) {
	var ctx context.Context
	ctx, r.cancel = context.WithCancelCause(m.t.Context())
	defer r.cancel(nil)
	v, err := preFlight(ctx, r.plugin, bc)
	if err == nil && len(v.Writes) > 0 {
		a.ran, a.bc = true, bc
		if err = r.plugin.PreBind(ctx, bc); err == nil {
			_ = r.cached.sync(ctx) // The call waits until the cache has the write.
			m.interleave()         // Other plugins run.
		}
	}
	if err == nil {
		err = confirm(ctx, r.plugin, bc)
	}
	if err != nil {
		m.logf("%s: %s: %v", r.id, a.id, err)
		if framework.IsKind(err, framework.KindInvalid) || framework.IsKind(err, framework.KindInternal) {
			m.failf("unexpected error: %v", err)
		}
		if !a.reported {
			m.undo(r, a)
		}
		return
	}
	asked, err := r.plugin.ask(bc)
	require.NoError(m.t, err)
	a.reported = true
	m.flights = append(m.flights, &flight{attempt: a.id, bc: bc, ask: asked, since: m.clock.Now()})
	m.logf("%s: %s is allowed", r.id, a.id)
}

func (m *model) undo(r *replica, a *attempt) {
	if a.ran && m.chance(90) { // Otherwise the API server is unavailable, and the sweep rolls back.
		err := r.plugin.PreBindRollBack(m.t.Context(), a.bc)
		m.logf("%s: %s is rolled back: %v", r.id, a.id, err)
	}
	r.attempts = slices.DeleteFunc(r.attempts, func(other *attempt) bool { return other == a })
}

// land finishes an allowed bind in the API server: it succeeds, unless a precondition or the
// caller ends it.
func (m *model) land() {
	if len(m.flights) == 0 {
		return
	}
	i := m.rng.IntN(len(m.flights))
	f := m.flights[i]
	m.flights = slices.Delete(m.flights, i, i+1)
	if m.alive(f) && (m.calm || m.chance(85)) {
		m.logf("%s is bound by %s", f.bc.Pod.UID, f.attempt)
		m.s.bind(f.bc)
	}
}

// alive reports whether the bind can still succeed.
func (m *model) alive(f *flight) bool {
	pod := m.live(f.bc.Pod)
	return whereaboutsOf(pod, f.bc.Pod.UID, f.bc.Node.Name) == framework.Pending && m.clock.Since(f.since) < flightTakes
}

func (m *model) flies(attempt string) bool {
	return slices.ContainsFunc(m.flights, func(f *flight) bool { return f.attempt == attempt && m.alive(f) })
}

// outcome lets an attempt follow the outcome of its bind.
func (m *model) outcome(r *replica) {
	if len(r.attempts) == 0 {
		return
	}
	a := r.attempts[m.rng.IntN(len(r.attempts))]
	pod := m.live(a.pod)
	switch {
	case pod != nil && pod.UID == a.pod.UID && pod.Spec.NodeName == a.node:
		if a.ran {
			m.logf("%s: %s observes that the pod is bound", r.id, a.id)
			_ = r.plugin.PostBind(m.t.Context(), a.bc) // The sweep repeats it.
		}
		r.attempts = slices.DeleteFunc(r.attempts, func(other *attempt) bool { return other == a })
	case !m.flies(a.id):
		m.undo(r, a)
	}
}

// end ends a pod.
func (m *model) end() {
	if len(m.pods) == 0 {
		return
	}
	pod := m.pods[m.rng.IntN(len(m.pods))]
	now := m.live(pod)
	if now == nil || now.UID != pod.UID {
		return
	}
	if m.chance(40) {
		m.logf("%s finishes", pod.UID)
		m.s.finish(pod)
		return
	}
	m.logf("%s is deleted", pod.UID)
	m.s.delete(pod)
}

// sweep simulates the sweep of the engine, for the marks in the cache of the replica.
func (m *model) sweep(r *replica) {
	marks, err := r.plugin.Marks(m.t.Context())
	require.NoError(m.t, err)
	for _, mark := range marks {
		worked := slices.ContainsFunc(m.replicas, func(other *replica) bool {
			return !other.cutOff && slices.ContainsFunc(other.attempts, func(a *attempt) bool { return a.id == mark.Attempt })
		})
		if worked {
			continue
		}
		pod := m.live(gen.Pod(mark.Pod.Name))
		bc := recovered(&framework.BindContext{Pod: gen.Pod(mark.Pod.Name, gen.UID(mark.PodUID)), Node: gen.Node(mark.Node), Attempt: mark.Attempt})
		switch {
		case pod != nil && pod.UID == mark.PodUID && pod.Spec.NodeName == mark.Node:
			m.logf("%s sweeps: %s is bound", r.id, mark.Attempt)
			_ = r.plugin.PostBind(m.t.Context(), bc) // The sweep repeats it.
		case pod != nil && pod.UID == mark.PodUID && pod.Spec.NodeName == "" && m.flies(mark.Attempt):
			// The sweep waits longer than the API server can need for a bind.
		default:
			err := r.plugin.PreBindRollBack(m.t.Context(), bc)
			m.logf("%s sweeps: %s is rolled back: %v", r.id, mark.Attempt, err)
		}
	}
}

// loseRecord deletes a record when no bind to its node is in progress.
func (m *model) loseRecord() {
	node := nodes[m.rng.IntN(2)]
	for _, r := range m.replicas {
		if slices.ContainsFunc(r.attempts, func(a *attempt) bool { return a.node == node }) {
			return
		}
	}
	if slices.ContainsFunc(m.flights, func(f *flight) bool { return f.bc.Node.Name == node && m.alive(f) }) {
		return
	}
	if object := m.s.object(node); object != nil {
		m.logf("the record of %s is lost", node)
		require.NoError(m.t, m.s.Delete(m.t.Context(), object))
	}
}
