// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	leases "github.com/prebind/prebind/internal/replica"
	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

const (
	// leaseLasts is the maximum age of a renewal. The guard checks the Lease of a replica that no fault has touched for
	// undisturbedFor.
	leaseLasts     = 30 * time.Second
	undisturbedFor = 40 * time.Second
	// bindWithin is the deadline of an ordinary bind during faults, quietWithin the deadline after the last fault. Each fault
	// can delay a bind by up to eight seconds.
	bindWithin, quietWithin = cluster.Patience, time.Minute
	// slowBind is the duration from which the test logs the responses of a bind.
	slowBind = 5 * time.Second
	// ordinaryEvery is the interval of ordinary binds.
	ordinaryEvery = 1500 * time.Millisecond
)

// guard continuously checks the promises that no fault and no attacker may break.
type guard struct {
	w *world
	// stop ends the watches. enough ends the creation of ordinary pods.
	stop, enough context.CancelFunc
	wg, ordinary sync.WaitGroup
	// limit is the memory limit of the shipped Deployment, in bytes.
	limit float64

	mu    sync.Mutex
	wrong map[string]bool
	// memory is the peak memory of the Go runtime of each replica, in bytes.
	memory map[string]float64
	// quiet is set after the last fault.
	quiet bool
	// made counts the ordinary pods.
	made int
	// took contains the durations of ordinary binds, during and after the faults.
	took, tookQuiet []time.Duration
	// claimBound is the creation time of the latest bound ordinary pod with a claim.
	claimBound time.Time
	// slow lists ordinary binds longer than slowBind with their responses.
	slow []string
}

func newGuard(t *testing.T, w *world, seed uint64) *guard {
	t.Helper()
	d, err := w.client.AppsV1().Deployments(install.Namespace).Get(t.Context(), "prebind", metav1.GetOptions{})
	require.NoError(t, err)
	g := &guard{
		w: w, wrong: map[string]bool{}, memory: map[string]float64{},
		limit: float64(d.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value()),
	}
	ctx, stop := context.WithCancel(t.Context())
	creating, enough := context.WithCancel(ctx)
	g.stop, g.enough = stop, enough
	t.Cleanup(func() {
		stop()
		g.ordinary.Wait()
		g.wg.Wait()
	})
	g.wg.Go(func() { g.watchLeases(ctx) })
	for _, r := range w.replicas {
		g.wg.Go(func() { g.watchMemory(ctx, r) })
	}
	for _, namespace := range append(attackNamespaces(), ns) {
		g.wg.Go(func() {
			follow(ctx, w.watcher, namespace, claims(), func(before, now client.Object, _ bool) { g.claim(ctx, before, now) })
		})
	}
	g.ordinary.Go(func() { g.bindOrdinary(ctx, creating, seed) })
	return g
}

func (g *guard) odd(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wrong[fmt.Sprintf(format, args...)] = true
}

// end stops the guard and returns the violations.
func (g *guard) end(t *testing.T) []string {
	t.Helper()
	g.enough()
	g.ordinary.Wait() // Each bind has a deadline.
	g.stop()
	g.wg.Wait()
	for name, most := range g.memory {
		t.Logf("%s had at most %s of %s", name, mib(most), mib(g.limit))
		if most > g.limit {
			g.odd("%s had %s of memory, which exceeds the shipped limit of %s", name, mib(most), mib(g.limit))
		}
	}
	for what, took := range map[string][]time.Duration{"with faults": g.took, "without faults": g.tookQuiet} {
		slices.Sort(took)
		if n := len(took); n > 0 {
			t.Logf("%d ordinary binds %s: median %s, p99 %s, slowest %s", n, what, round(took[n/2]), round(took[n*99/100]), round(took[n-1]))
		}
	}
	for _, line := range g.slow {
		t.Log(line)
	}
	return slices.Sorted(maps.Keys(g.wrong))
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// calmDown marks the end of the faults. It first waits for the bind of a new pod with a claim, because a provisioner that has
// lost the API server needs up to half a minute to watch again.
func (g *guard) calmDown(t *testing.T) {
	t.Helper()
	began := time.Now()
	require.Eventually(t, func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.claimBound.After(began)
	}, settled, time.Second, "a pod with a claim should be bound after the last fault")
	t.Logf("the provisioner was back %s after the last fault", round(time.Since(began)))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.quiet = true
}

// watchLeases checks that the number of renewed Leases is at least the number of undisturbed replicas. It does not map Leases
// to replicas, because a process creates another Lease after each start.
func (g *guard) watchLeases(ctx context.Context) {
	renewed, seen := map[string]time.Time{}, map[string]time.Time{}
	for ; ctx.Err() == nil; pause(ctx, time.Second) {
		reports, err := leases.Statuses(ctx, g.w.client, install.Namespace)
		if err != nil {
			continue
		}
		now, fresh := time.Now(), 0
		for _, r := range reports {
			if !renewed[r.Replica].Equal(r.Reported.Time) {
				renewed[r.Replica], seen[r.Replica] = r.Reported.Time, now
			}
			if now.Sub(seen[r.Replica]) < leaseLasts {
				fresh++
			}
		}
		if must := g.w.disturbed.undisturbed(now, undisturbedFor); fresh < must {
			g.odd("%d Leases were renewed in the last %s, but %d replicas had run undisturbed for %s", fresh, leaseLasts, must, undisturbedFor)
		}
	}
}

// watchMemory records the memory of the replica's Go runtime. Resident memory also includes the race detector, which needs
// several times as much.
func (g *guard) watchMemory(ctx context.Context, r *replica) {
	for ; ctx.Err() == nil; pause(ctx, 500*time.Millisecond) {
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		text, err := r.Metrics(asking)
		cancel()
		if err != nil {
			continue
		}
		all, _ := install.Sum(text, "go_memstats_sys_bytes", "")
		released, _ := install.Sum(text, "go_memstats_heap_released_bytes", "")
		g.mu.Lock()
		g.memory[r.Name()] = max(g.memory[r.Name()], all-released)
		g.mu.Unlock()
	}
}

// claim reports a ResourceClaim that loses its reservation or allocation while its pod runs.
func (g *guard) claim(ctx context.Context, before, now client.Object) {
	was, ok := before.(*resourcev1.ResourceClaim)
	is, still := now.(*resourcev1.ResourceClaim)
	if !ok || !still {
		return
	}
	for _, r := range was.Status.ReservedFor {
		if holdsFor(is, r) && (was.Status.Allocation == nil || is.Status.Allocation != nil) {
			continue
		}
		g.wg.Go(func() {
			if g.lost(ctx, client.ObjectKeyFromObject(is), r) {
				g.odd("the claim %s/%s is no longer allocated and reserved for the running pod %s; managers: %v", is.Namespace, is.Name, r.Name, managers(is))
			}
		})
	}
}

func holdsFor(claim *resourcev1.ResourceClaim, consumer resourcev1.ResourceClaimConsumerReference) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == consumer.UID })
}

// lost reports whether the pod is bound before and after the claim lacks its reservation or allocation.
func (g *guard) lost(ctx context.Context, key client.ObjectKey, consumer resourcev1.ResourceClaimConsumerReference) bool {
	runs := func() bool {
		pod := &corev1.Pod{}
		err := g.read(ctx, client.ObjectKey{Namespace: key.Namespace, Name: consumer.Name}, pod)
		return err == nil && pod.UID == consumer.UID && pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil
	}
	claim := &resourcev1.ResourceClaim{}
	return runs() && g.read(ctx, key, claim) == nil && (!holdsFor(claim, consumer) || claim.Status.Allocation == nil) && runs()
}

// read reads an object, and retries while the API server is unavailable.
func (g *guard) read(ctx context.Context, key client.ObjectKey, into client.Object) error {
	for {
		err := g.w.watcher.Get(ctx, key, into)
		if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil {
			return err
		}
		pause(ctx, time.Second)
	}
}

// bindOrdinary creates and binds pods of an ordinary tenant until creating ends. Its client repeats failed requests.
func (g *guard) bindOrdinary(ctx, creating context.Context, seed uint64) {
	for n := 0; creating.Err() == nil; n++ {
		rng := rand.New(rand.NewPCG(seed, 1<<32+uint64(n)))
		g.ordinary.Go(func() { g.bindOne(ctx, rng, fmt.Sprintf("ordinary-%d-%d", seed, n)) })
		pause(creating, ordinaryEvery)
	}
}

// bindOne creates a pod and binds it. The deadline counts from the first Binding.
func (g *guard) bindOne(ctx context.Context, rng *rand.Rand, name string) {
	options := []gen.PodOption{gen.InNamespace(ns), gen.Scheduler(byHand), gen.EndsAtOnce()}
	var objects []client.Object
	switch rng.IntN(3) {
	case 0: // A pod without claims or devices.
	case 1:
		options = append(options, gen.Annotation("node-state.prebind.dev/expect", "kubernetes.io/os=linux"))
	case 2:
		objects = append(objects, gen.Claim(name, gen.InNamespace(ns), gen.OfClass("dynamic")))
		options = append(options, gen.UsesClaim(name))
	}
	pod := gen.Pod(name, options...)
	for _, o := range append(objects, pod) {
		for {
			err := g.w.watcher.Create(ctx, o)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			if apierrors.IsAlreadyExists(err) && g.read(ctx, client.ObjectKeyFromObject(o), o) == nil {
				break
			}
			pause(ctx, time.Second)
		}
	}
	g.mu.Lock()
	within, quiet := bindWithin, g.quiet
	g.made++
	g.mu.Unlock()
	if quiet {
		within = quietWithin
	}
	began, node := time.Now(), nodeName(rng.IntN(nodes))
	var heard []string
	defer func() {
		if took := time.Since(began); took > slowBind {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.slow = append(g.slow, fmt.Sprintf("the bind of the ordinary pod %s took %s from %s: %s", name, round(took), began.Format(time.StampMilli), strings.Join(heard, "; ")))
		}
	}()
	for {
		err := g.post(ctx, pod, node)
		heard = append(heard, fmt.Sprintf("%s: %v", round(time.Since(began)), err))
		switch {
		case ctx.Err() != nil, apierrors.IsNotFound(err):
			return // The guard has ended, or the load has ended the pod.
		case err == nil:
			g.mu.Lock()
			defer g.mu.Unlock()
			if len(objects) > 0 && began.After(g.claimBound) {
				g.claimBound = began
			}
			if quiet {
				g.tookQuiet = append(g.tookQuiet, time.Since(began))
			} else {
				g.took = append(g.took, time.Since(began))
			}
			return
		case time.Since(began) > within:
			for _, o := range objects {
				if apierrors.IsNotFound(g.read(ctx, client.ObjectKeyFromObject(o), o)) {
					return // The load has deleted the claim, but not the pod.
				}
			}
			g.odd("the ordinary pod %s was not bound within %s: %v", name, within, err)
			return
		}
		pause(ctx, 200*time.Millisecond)
	}
}

// post posts a Binding. If the response is an error, it checks whether the pod is bound.
func (g *guard) post(ctx context.Context, pod *corev1.Pod, node string) error {
	posting, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	err := g.w.client.CoreV1().Pods(ns).Bind(posting, gen.Binding(pod, node), metav1.CreateOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	now := &corev1.Pod{}
	if get := g.w.watcher.Get(ctx, client.ObjectKeyFromObject(pod), now); apierrors.IsNotFound(get) || get == nil && now.Spec.NodeName != "" {
		return client.IgnoreAlreadyExists(get)
	}
	return err
}

// disturbances records the replicas that faults affect.
type disturbances struct {
	mu sync.Mutex
	// active counts the current faults of a replica. last is the end of its last fault.
	active map[string]int
	last   map[string]time.Time
}

func newDisturbances(n int) *disturbances {
	d := &disturbances{active: map[string]int{}, last: map[string]time.Time{}}
	for i := range n {
		d.last[fmt.Sprintf("replica-%d", i)] = time.Now()
	}
	return d
}

// during records a fault until the returned function is called.
func (d *disturbances) during(f fault) func() {
	d.mu.Lock()
	defer d.mu.Unlock()
	touched := d.touchedBy(f)
	for _, name := range touched {
		d.active[name]++
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, name := range touched {
			d.active[name]--
			d.last[name] = time.Now()
		}
	}
}

// touchedBy returns the replicas that the fault can keep from renewing a Lease.
func (d *disturbances) touchedBy(f fault) []string {
	var touched []string
	for name := range d.last {
		if slices.Contains([]string{name, clockOf(name), cluster.Etcd, cluster.APIServer, cluster.OtherAPIServer}, f.target) {
			touched = append(touched, name)
		}
	}
	return touched
}

// undisturbed returns the number of replicas that no fault has affected for the given duration.
func (d *disturbances) undisturbed(now time.Time, length time.Duration) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for name, last := range d.last {
		if d.active[name] == 0 && now.Sub(last) >= length {
			n++
		}
	}
	return n
}
