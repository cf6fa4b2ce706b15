// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

const (
	// byHand is a scheduler that only posts Bindings.
	byHand = "by-hand"
	// every is the interval of new pods, unless a test sets another one.
	every = 150 * time.Millisecond
	// crowd is the maximum number of pods. The load deletes the oldest pods above it.
	crowd = 70
	// tries is the maximum number of Bindings of a pod by hand.
	tries = 12
)

// pods lists the kinds of pods with their possible schedulers.
var pods = []struct {
	name       string
	schedulers []string
}{
	{"nothing", []string{cluster.DefaultScheduler, cluster.NoPreBindScheduler, byHand}},
	{"dynamic", []string{cluster.DefaultScheduler, cluster.NoPreBindScheduler, byHand}},
	{"slow", []string{cluster.NoPreBindScheduler, byHand}},
	{"static", []string{cluster.NoPreBindScheduler, byHand}},
	{"device", []string{cluster.DefaultScheduler, cluster.NoPreBindScheduler, byHand, byHand, byHand}},
	{"unreserved", []string{byHand}},
	{"scheduled", []string{cluster.DefaultScheduler}},
	{"state", []string{cluster.DefaultScheduler, cluster.NoPreBindScheduler, byHand}},
	{"mixed", []string{byHand}},
}

// load creates pods, binds some of them, and deletes them.
type load struct {
	w     *world
	seed  uint64
	every time.Duration
	stop  context.CancelFunc
	wg    sync.WaitGroup
	// n counts the created pods.
	n uint64

	mu sync.Mutex
	// made counts pods by kind. calls counts the Bindings that were posted by hand.
	made  map[string]int
	calls int
	// allowed is the node for which a client got success, and answers the last other response by pod name.
	allowed map[types.UID]string
	answers map[string]string
}

func newLoad(w *world, seed uint64) *load {
	return &load{w: w, seed: seed, every: every, made: map[string]int{}, allowed: map[types.UID]string{}, answers: map[string]string{}}
}

// begin starts or continues the load and returns immediately.
func (l *load) begin(ctx context.Context) {
	ctx, l.stop = context.WithCancel(ctx)
	l.wg.Go(func() {
		for ctx.Err() == nil {
			l.n++
			l.create(ctx, l.n)
			pause(ctx, l.every)
		}
	})
	l.wg.Go(func() {
		for ctx.Err() == nil {
			l.thin(ctx)
			pause(ctx, every) // The guard creates pods as well.
		}
	})
	l.wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			_ = l.w.setOpen(ctx, []string{"no", "yes"}[n%2])
			pause(ctx, 4*time.Second)
		}
	})
}

// end stops the load. Afterwards it does not create, delete or bind pods.
func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

// create creates one pod. It starts to bind a pod without a scheduler.
func (l *load) create(ctx context.Context, n uint64) {
	rng := rand.New(rand.NewPCG(l.seed, n))
	kind := pods[rng.IntN(len(pods))]
	p := &bound{load: l, rng: rng, name: fmt.Sprintf("pod-%d", n), kind: kind.name, scheduler: kind.schedulers[rng.IntN(len(kind.schedulers))]}
	if l.w.cluster.Process(cluster.SecondScheduler) != nil && p.scheduler == cluster.NoPreBindScheduler && rng.IntN(2) == 0 {
		p.scheduler = cluster.SecondScheduler
	}
	options, objects := p.needs()
	for _, o := range objects {
		if l.w.watcher.Create(ctx, o) != nil {
			return // The API server is down. Objects that already exist stay without a pod.
		}
	}
	pod, err := l.w.client.CoreV1().Pods(ns).Create(ctx, gen.Pod(p.name, append(options, gen.InNamespace(ns), gen.Scheduler(p.scheduler), gen.EndsAtOnce())...), metav1.CreateOptions{})
	l.mu.Lock()
	l.made[kind.name]++
	l.mu.Unlock()
	if err != nil {
		p.hear(err) // The pod may exist despite the error.
		return
	}
	if p.scheduler == byHand {
		l.wg.Go(func() { p.bind(ctx, pod) })
	}
}

// thin deletes the oldest pods above crowd, and sometimes the youngest pod, which may be pending.
func (l *load) thin(ctx context.Context) {
	all := l.w.ledger.living()
	if len(all) < crowd {
		return
	}
	victim := all[0]
	if len(all)%7 == 0 {
		victim = all[len(all)-1]
	}
	_ = l.w.client.CoreV1().Pods(ns).Delete(ctx, victim.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	for _, v := range victim.Spec.Volumes {
		if c := v.PersistentVolumeClaim; c != nil {
			_ = l.w.client.CoreV1().PersistentVolumeClaims(ns).Delete(ctx, c.ClaimName, metav1.DeleteOptions{})
		}
	}
}

// bound is a pod that the load creates and binds.
type bound struct {
	*load
	rng                   *rand.Rand
	name, kind, scheduler string
	// on is the only possible node. Empty means any node.
	on string
}

func (p *bound) is(kinds ...string) bool { return slices.Contains(kinds, p.kind) }

// needs returns the options of the pod, and the objects that it uses.
func (p *bound) needs() (options []gen.PodOption, objects []client.Object) {
	claim := func(class string) {
		options = append(options, gen.UsesClaim(p.name))
		objects = append(objects, gen.Claim(p.name, gen.InNamespace(ns), gen.OfClass(class)))
	}
	if p.is("dynamic", "mixed") {
		claim("dynamic")
	}
	if p.is("slow") {
		claim("slow")
	}
	if p.is("static") {
		p.on = nodeName(p.rng.IntN(nodes))
		claim("static")
		objects = append(objects, gen.Volume("volume-"+p.name, gen.VolumeOfClass("static"), gen.OnNode(p.on)))
	}
	if p.is("device") && p.scheduler != byHand {
		options = append(options, gen.Annotation("device.prebind.dev/gpu", p.device()))
	}
	if p.is("device") && p.rng.IntN(3) == 0 {
		options = append(options, gen.Annotation(lockIt, "true"))
	}
	if p.is("unreserved", "mixed") {
		options = append(options, gen.UsesResourceClaimTemplate("unreserved"))
	}
	if p.is("scheduled") {
		options = append(options, gen.UsesResourceClaimTemplate("scheduled"))
	}
	if p.is("state", "mixed") {
		options = append(options, gen.Annotation("node-state.prebind.dev/expect", openKey+"=yes"), gen.Annotation("node-state.prebind.dev/wait", "20s"))
	}
	return options, objects
}

// device returns a device of a node, or half of a device.
func (p *bound) device() string {
	return fmt.Sprintf("GPU-%d%s", p.rng.IntN(devices), []string{"", ":0.5"}[p.rng.IntN(2)])
}

// binding returns the next Binding.
func (p *bound) binding(pod *corev1.Pod) *corev1.Binding {
	node := p.on
	if node == "" || p.rng.IntN(10) == 0 {
		node = nodeName(p.rng.IntN(nodes))
	}
	var options []gen.BindingOption
	if p.is("device", "mixed") {
		options = append(options, gen.Annotation("device.prebind.dev/gpu", p.device()))
	}
	if p.rng.IntN(10) == 0 {
		options = append(options, gen.Annotation(lateKey, ""))
	}
	return gen.Binding(pod, node, options...)
}

// allocate allocates the claims of the pod for all nodes, and reserves none of them. Each claim gets a device of its own.
func (p *bound) allocate(ctx context.Context) error {
	pod, err := p.w.client.CoreV1().Pods(ns).Get(ctx, p.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	claims := p.w.client.ResourceV1().ResourceClaims(ns)
	for _, of := range pod.Status.ResourceClaimStatuses {
		claim, err := claims.Get(ctx, *of.ResourceClaimName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if claim.Status.Allocation != nil {
			continue
		}
		claim.Status = gen.ResourceClaim(claim.Name, gen.RequestsDevices(unreserved, 1), gen.AllocatedFor("", unreserved, gen.Device(claim.Name))).Status
		if _, err := claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{FieldManager: byHand}); err != nil {
			return err
		}
	}
	return nil
}

// bind binds the pod by hand, like a scheduler with a short timeout and without state. It does not retry one in ten pods
// after a failed Binding.
func (p *bound) bind(ctx context.Context, pod *corev1.Pod) {
	b := p.binding(pod)
	for range tries {
		err := p.allocate(ctx)
		if err == nil {
			err = p.post(ctx, b)
		}
		switch {
		case err == nil:
			p.mu.Lock()
			p.allowed[pod.UID] = b.Target.Name
			p.mu.Unlock()
			return
		case apierrors.IsNotFound(err):
			return // The load has deleted the pod.
		}
		p.hear(err)
		if ctx.Err() != nil {
			return
		}
		if b.ResourceVersion != "" && p.rng.IntN(3) == 0 {
			return
		}
		pause(ctx, time.Duration(200+p.rng.IntN(1500))*time.Millisecond)
		if again := p.rng.IntN(2) == 0; !again || b.ResourceVersion != "" || apierrors.IsForbidden(err) {
			b = p.binding(pod)
		}
		now, err := p.w.client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.Spec.NodeName != "" {
			return // The response was lost.
		}
	}
}

func (p *bound) hear(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[p.name] = err.Error()
}

func (p *bound) post(ctx context.Context, b *corev1.Binding) error {
	ctx, cancel := context.WithTimeout(ctx, []time.Duration{2 * time.Second, 40 * time.Second}[p.rng.IntN(2)])
	defer cancel()
	p.mu.Lock()
	p.calls++
	p.mu.Unlock()
	return p.w.client.CoreV1().Pods(ns).Bind(ctx, b, metav1.CreateOptions{})
}

// summary logs the size of the test, and what the replicas held before and after it.
func (l *load) summary(t *testing.T, faults int, rest time.Duration) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	made := 0
	for _, n := range l.made {
		made += n
	}
	t.Logf("%d faults, %d pods, %d bound, %d calls by hand, at rest after %.0f s", faults, made, l.w.ledger.everBound(), l.calls, rest.Seconds())
	for _, r := range l.w.replicas {
		now, err := r.held(t.Context())
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s: %d goroutines at first, %d now; %s of heap at first, %s now", r.Name(), total(r.atFirst.goroutines), total(now.goroutines), mib(total(r.atFirst.heap)), mib(total(now.heap)))
	}
}
