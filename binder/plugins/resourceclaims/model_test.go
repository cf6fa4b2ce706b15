// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/seeds"
)

// task is one thread of the model. It blocks before each request to the API server until the
// model resumes it.
type task struct {
	name   string
	goOn   chan struct{}
	parked bool
	// dead means that the process of the task has ended. Its requests do not reach the API
	// server.
	dead  bool
	ended bool
}

type taskKey struct{}

// model simulates several replicas with outdated caches and one API server. The schedulers
// allocate claims, and some of them reserve them. The model includes kube-controller-manager,
// crashes, lost responses, and delayed writes. The seed determines every run.
type model struct {
	t        *testing.T
	rng      *rand.Rand
	s        *apiServer
	replicas []*replica
	tasks    []*task
	// late contains delayed writes, whose callers received an error.
	late []func()
	// attempts contains the names of all attempts.
	attempts []string
	// working contains the attempts of running processes. The value shows whether the scheduler
	// still waits for the call.
	working map[string]*bool
	uid     int
	calm    bool
	faults  []string
	trace   []string
}

func (m *model) chance(percent int) bool { return m.rng.Intn(100) < percent }

func (m *model) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

func (m *model) fault(format string, args ...any) {
	m.faults = append(m.faults, fmt.Sprintf(format, args...))
}

// spawn starts a task, which blocks first.
func (m *model) spawn(name string, run func(ctx context.Context, me *task)) *task {
	me := &task{name: name, goOn: make(chan struct{})}
	m.tasks = append(m.tasks, me)
	ctx := klog.NewContext(context.WithValue(m.t.Context(), taskKey{}, me), logr.Discard())
	go func() {
		m.park(me)
		run(ctx, me)
		me.ended = true
	}()
	return me
}

func (m *model) park(me *task) {
	me.parked = true
	<-me.goOn
	me.parked = false
}

// step handles each request of a task in the API server.
func (m *model) step(ctx context.Context, w fakeapi.Call, do func() error) error {
	me, ok := ctx.Value(taskKey{}).(*task)
	if !ok {
		return do() // The request comes from settle.
	}
	m.park(me)
	writes := w.Verb != "get" && w.Verb != "list"
	switch {
	case me.dead || !m.calm && m.chance(4):
		if writes && m.chance(60) {
			m.note("%s: %s is delayed", me.name, w)
			m.late = append(m.late, func() { _ = do() })
		}
		return apierrors.NewTimeoutError("no response", 1)
	case !m.calm && m.chance(3):
		m.note("%s: %s, the response is lost", me.name, w)
		_ = do()
		return apierrors.NewTimeoutError("lost response", 1)
	}
	err := do()
	m.note("%s: %s %v", me.name, w, err)
	return err
}

// run resumes a task until its next request.
func (m *model) run(me *task) {
	me.goOn <- struct{}{}
	synctest.Wait()
}

func (m *model) ready() []*task {
	synctest.Wait()
	return slices.DeleteFunc(slices.Clone(m.tasks), func(t *task) bool { return t.ended || !t.parked })
}

// attempt runs one bind like the engine, while the scheduler waits for the call.
func (m *model) attempt(ctx context.Context, me *task, r *replica, id string, pod *corev1.Pod, node string, calls *bool) {
	m.working[id] = calls
	defer delete(m.working, id)
	bc := bind(pod, node, id)
	v, err := r.preFlight(ctx, bc)
	if err != nil {
		m.note("%s: PreFlight: %v", me.name, err)
	}
	if err != nil || me.dead || v.Wait.For != "" {
		return
	}
	if isReady(v) {
		m.bind(me, pod, node, calls)
		return
	}
	for rounds := 1 + m.rng.Intn(2); ; rounds-- {
		err = r.PreBind(ctx, bc)
		if err == nil {
			// The call waits until the cache has what it wrote.
			refs, _ := references(pod)
			for _, ref := range refs {
				r.cache.follow(claimKey(ref.claim))
			}
			err = r.confirm(ctx, bc)
		}
		if err == nil {
			m.bind(me, pod, node, calls)
		} else {
			m.note("%s: PreBind: %v", me.name, err)
		}
		if me.dead {
			return
		}
		if err != nil || rounds <= 1 || m.isBound(pod) {
			break
		}
		bc = bind(pod, node, id)
		if v, err := r.preFlight(ctx, bc); err != nil || isReady(v) {
			break
		}
	}
	for !me.dead {
		live := &corev1.Pod{}
		err := r.conn.Get(ctx, client.ObjectKeyFromObject(pod), live)
		switch {
		case err == nil && live.UID == pod.UID && live.Spec.NodeName == node:
			_ = r.PostBind(ctx, bc) // The sweep repeats it.
			return
		case err != nil && !apierrors.IsNotFound(err):
			continue
		}
		if err := r.PreBindRollBack(ctx, bc); err == nil {
			return
		}
	}
}

// bind completes an allowed Binding in the API server. Another webhook can reject it.
func (m *model) bind(me *task, pod *corev1.Pod, node string, calls *bool) {
	m.park(me)
	if me.dead || !*calls || m.chance(30) {
		return
	}
	live := &corev1.Pod{}
	if m.s.get(client.ObjectKeyFromObject(pod), live) != nil || live.UID != pod.UID || live.Spec.NodeName != "" {
		return
	}
	live.Spec.NodeName = node
	m.s.Put(live)
	m.note("%s: %s is bound to %s", me.name, pod.UID, node)
}

func (m *model) isBound(pod *corev1.Pod) bool {
	live := &corev1.Pod{}
	return m.s.get(client.ObjectKeyFromObject(pod), live) == nil && live.UID == pod.UID && live.Spec.NodeName != ""
}

// schedule runs a scheduler for one pod. It chooses a node, posts the Binding, and can cancel
// the call at any time.
func (m *model) schedule(ctx context.Context, me *task, name string) {
	pod := &corev1.Pod{}
	if m.s.get(client.ObjectKey{Namespace: "default", Name: name}, pod) != nil || pod.Spec.NodeName != "" {
		return
	}
	node := []string{"node-a", "node-b"}[m.rng.Intn(2)]
	m.allocate(pod, node)
	var mine []string
	if m.chance(50) {
		mine = m.reserve(me, pod)
	}
	// A repeated call can reach another replica.
	for range 1 + m.rng.Intn(3) {
		i := m.rng.Intn(len(m.replicas))
		m.uid++
		id := fmt.Sprintf("replica%d-%d", i, m.uid)
		m.attempts = append(m.attempts, id)
		calls := true
		work := m.spawn(id, func(ctx context.Context, me *task) {
			m.attempt(ctx, me, m.replicas[i], id, pod, node, &calls)
		})
		for !work.ended && !work.dead && !m.chance(4) {
			m.park(me)
		}
		calls = false
		if m.isBound(pod) {
			return
		}
	}
	for _, claim := range mine {
		m.park(me)
		m.unreserve(claim, pod)
	}
	_ = ctx
}

// allocate allocates the pod's claims for the node like kube-scheduler. It first deallocates
// claims that no pod has reserved.
func (m *model) allocate(pod *corev1.Pod, node string) {
	for _, ref := range pod.Spec.ResourceClaims {
		name := *ref.ResourceClaimName
		if name == everywhere || len(m.s.claim(name).Status.ReservedFor) > 0 {
			continue
		}
		m.note("kube-scheduler: allocates %s for %s", name, node)
		m.s.change(name, "kube-scheduler", func(c *resourcev1.ResourceClaim) {
			c.Finalizers = nil
			allocated(node, name)(c)
		})
	}
}

// reserve reserves allocated claims like kube-scheduler.
func (m *model) reserve(me *task, pod *corev1.Pod) []string {
	var mine []string
	for _, ref := range pod.Spec.ResourceClaims {
		claim := m.s.claim(*ref.ResourceClaimName)
		if claim == nil || claim.Status.Allocation == nil || reservedFor(claim, pod.UID) {
			continue
		}
		m.park(me)
		claim = m.s.claim(claim.Name)
		if claim == nil || claim.Status.Allocation == nil || reservedFor(claim, pod.UID) || m.isBound(pod) {
			continue
		}
		m.s.change(claim.Name, "kube-scheduler", func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		})
		m.note("%s: reserves %s for %s", me.name, claim.Name, pod.UID)
		mine = append(mine, claim.Name)
	}
	return mine
}

// unreserve removes the reservation of kube-scheduler. The pod is bound again only after all
// caches have the change.
func (m *model) unreserve(name string, pod *corev1.Pod) {
	if m.isBound(pod) {
		return
	}
	m.s.change(name, "kube-scheduler", func(c *resourcev1.ResourceClaim) {
		c.Status.ReservedFor = slices.DeleteFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
	})
	m.note("kube-scheduler: unreserves %s for %s", name, pod.UID)
	for _, r := range m.replicas {
		r.cache.follow(claimKey(name))
	}
}

// end replaces a pod with a new one. controller then removes the reservations of the old pod.
func (m *model) end(name string) {
	pod := &corev1.Pod{}
	if m.s.get(client.ObjectKey{Namespace: "default", Name: name}, pod) != nil {
		return
	}
	m.uid++
	renewed := pod.DeepCopy()
	renewed.UID, renewed.Spec.NodeName = types.UID(fmt.Sprintf("%s-%d", name, m.uid)), ""
	m.s.Put(renewed)
	m.note("%s ends, %s replaces it", pod.UID, renewed.UID)
}

func (m *model) controller() {
	for _, name := range m.claims() {
		claim := m.s.claim(name)
		valid := slices.DeleteFunc(slices.Clone(claim.Status.ReservedFor), func(r resourcev1.ResourceClaimConsumerReference) bool {
			pod := &corev1.Pod{}
			return m.s.get(client.ObjectKey{Namespace: "default", Name: r.Name}, pod) != nil || pod.UID != r.UID
		})
		if len(valid) == len(claim.Status.ReservedFor) {
			continue
		}
		m.note("kube-controller-manager: %s keeps %d reservations", name, len(valid))
		m.s.change(name, "kube-controller-manager", func(c *resourcev1.ResourceClaim) {
			if c.Status.ReservedFor = valid; len(valid) == 0 && name != everywhere {
				c.Status.Allocation, c.Finalizers = nil, nil
			}
		})
	}
}

func (m *model) claims() []string { return []string{"shared", "one", "two", "three", everywhere} }

// everywhere is a claim with a device for all nodes. It is never deallocated.
const everywhere = "everywhere"

// sweep settles the marks of attempts that are not in progress, like the engine.
func (m *model) sweep(ctx context.Context, r *replica) {
	marks, err := r.Marks(ctx)
	if err != nil {
		m.fault("Marks: %v", err)
	}
	for _, mark := range marks {
		if calls := m.working[mark.Attempt]; calls != nil {
			if m.calm || !m.chance(10) {
				continue
			}
			// The process was paused for so long that the other replicas consider it dead.
			m.note("%s counts as dead", mark.Attempt)
			*calls = false
		}
		pod := thePod(mark.Pod.Name)
		pod.UID = mark.PodUID
		bc := recovered(pod, mark.Node, mark.Attempt)
		live := &corev1.Pod{}
		if err := r.conn.Get(ctx, mark.Pod, live); err != nil && !apierrors.IsNotFound(err) {
			continue
		}
		if live.UID == mark.PodUID && live.Spec.NodeName == mark.Node {
			_ = r.PostBind(ctx, bc) // The next sweep repeats it.
			continue
		}
		m.note("sweeps %s", mark.Attempt)
		_ = r.PreBindRollBack(ctx, bc)
	}
}

// act runs one step of the model.
func (m *model) act() {
	if ready := m.ready(); len(ready) > 0 && m.chance(80) {
		me := ready[m.rng.Intn(len(ready))]
		if strings.HasPrefix(me.name, "replica") && m.chance(1) {
			m.note("%s dies", me.name)
			me.dead = true
			delete(m.working, me.name)
		}
		m.run(me)
		return
	}
	switch m.rng.Intn(10) {
	case 0, 1, 2:
		name := fmt.Sprintf("pod%d", m.rng.Intn(5))
		if !slices.ContainsFunc(m.tasks, func(t *task) bool { return t.name == name && !t.ended }) {
			m.spawn(name, func(ctx context.Context, me *task) { m.schedule(ctx, me, name) })
		}
	case 3, 4:
		m.replicas[m.rng.Intn(len(m.replicas))].cache.follow(claimKey(m.claims()[m.rng.Intn(5)]))
	case 5:
		if m.chance(30) {
			m.end(fmt.Sprintf("pod%d", m.rng.Intn(5)))
		}
	case 6:
		m.controller()
	case 7:
		if len(m.late) > 0 {
			i := m.rng.Intn(len(m.late))
			late := m.late[i]
			m.late = slices.Delete(m.late, i, i+1)
			m.note("a delayed write takes effect")
			late()
		}
	case 9:
		if m.chance(30) {
			m.forge()
		}
	case 8:
		i := m.rng.Intn(len(m.replicas))
		m.spawn("sweeper", func(ctx context.Context, _ *task) {
			m.sweep(ctx, m.replicas[i])
		})
	}
}

// forge writes a mark to a claim as a tenant. The attempt of the mark may not exist. The pod UID
// is valid, the names of the pod and the node may not be.
func (m *model) forge() {
	pod := &corev1.Pod{}
	if m.s.get(client.ObjectKey{Namespace: "default", Name: fmt.Sprintf("pod%d", m.rng.Intn(5))}, pod) != nil {
		return
	}
	attempt := "nosuchid-1"
	if len(m.attempts) > 0 && m.chance(70) {
		attempt = m.attempts[m.rng.Intn(len(m.attempts))]
	}
	value := mark{Pod: []string{pod.Name, "no-such-pod"}[m.rng.Intn(2)], Node: []string{"node-a", "x"}[m.rng.Intn(2)]}.encode()
	claim := m.claims()[m.rng.Intn(5)]
	m.note("the tenant marks %s for %s with %s", claim, pod.UID, attempt)
	m.s.change(claim, "kubectl", meta1(gen.Annotation(markKey(pod.UID, attempt), value)))
}

// newModel returns a model with three replicas, two nodes, five claims, and five pods.
func newModel(t *testing.T, seed int64) *model {
	t.Helper()
	s := newAPI(gen.Node("node-a"), gen.Node("node-b"))
	m := &model{t: t, rng: rand.New(rand.NewSource(seed)), s: s, working: map[string]*bool{}}
	for _, claim := range m.claims()[:4] {
		s.Put(theClaim(claim))
	}
	s.Put(theClaim(everywhere, allocated("fabric", "link"), anywhere))
	for i, claims := range [][]string{{"shared", everywhere}, {"shared"}, {"one", everywhere}, {"two", "shared"}, {everywhere}} {
		s.Put(thePod(fmt.Sprintf("pod%d", i), uses(claims...)))
	}
	for range 3 {
		r := newReplica(t, s)
		r.conn.Step = m.step
		r.cache.freeze()
		m.replicas = append(m.replicas, r)
	}
	return m
}

func TestModel(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 20
	}
	binds, all := 0, seeds.Of(t, n)
	for _, seed := range all {
		synctest.Test(t, func(t *testing.T) {
			m := newModel(t, int64(seed)) //nolint:gosec // Any number is a seed.
			for range 500 {
				m.act()
				m.check()
				if len(m.faults) > 0 {
					break
				}
			}
			failed := len(m.faults) > 0
			if !failed {
				m.settle()
			} else {
				drain(m)
			}
			binds += strings.Count(strings.Join(m.trace, "\n"), " is bound to ")
			if len(m.faults) > 0 {
				t.Logf("seed %d:\n%s", seed, strings.Join(m.trace[max(0, len(m.trace)-80):], "\n"))
				require.Empty(t, m.faults)
			}
		})
	}
	require.Greater(t, binds, len(all), "the model binds pods")
}
