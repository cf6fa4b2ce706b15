// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/seeds"
)

// The size of the race. The pods request about three times the available devices.
const (
	raceNodes       = 5
	raceDevices     = 8
	racePods        = 200
	raceWorkers     = 10
	raceContestants = 40
)

// TestDeviceRace runs two independent schedulers that bind two hundred pods to the devices of five nodes, with two replicas. When
// all devices are in use, the test ends one pod for each refused bind.
//
// The ordered watch events of the pods show that no device was granted twice.
func TestDeviceRace(t *testing.T) {
	t.Parallel()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	r := newRace(ctx, t)
	r.run(ctx)
	require.False(t, t.Failed())
	t.Logf("%d pods were bound after %d refusals of %d of them, with up to %s devices in use, by attempts of %v, after %s",
		racePods, r.refusals, len(r.refused), r.ledger.most.FloatString(2), r.ledger.byReplica, time.Since(began).Round(time.Second))

	assert.Positive(t, r.ledger.most.Cmp(big.NewRat(raceNodes*raceDevices*3/4, 1)), "most of the devices should have been in use at a time")
	assert.Greater(t, len(r.refused), racePods/4, "the devices should have been too few for all")
	assert.Len(t, r.ledger.byReplica, 2, "both replicas should have granted devices")
	for replica, n := range r.ledger.byReplica {
		assert.Greater(t, n, racePods/10, "replica %s should have had its part", replica)
	}
	r.assertToldWhy()

	r.endAll(ctx)
	r.giveEachDevice(ctx)
	r.endAll(ctx)
	require.Empty(t, r.ledger.wrong, "no device should be granted twice")
	t.Logf("the race took %s", time.Since(began).Round(time.Second))
	for _, node := range r.nodes {
		r.untilRecord(node, "empty", func(data map[string]string) bool {
			return len(data) == 0 || len(data) == 1 && data["node"] == node
		})
	}
}

// race is the state that both schedulers share.
type race struct {
	*bench
	nodes      []string
	toleration gen.PodOption
	rivals     []*rival
	ledger     *ledger

	mu sync.Mutex
	// untried is the number of pods without a bind attempt. When it is 0, the test starts to end pods.
	untried int
	// asked contains the pod, node and device of every posted Binding. The holder in a refusal must be one of them.
	asked    map[string]bool
	refused  map[string]bool
	refusals int
	ended    int
	// strange contains unexpected responses.
	strange []string
}

// racer is a pod. Each try chooses devices again. The number of devices does not change.
type racer struct {
	name string
	// shares contains the suffix of each device ID.
	shares []string
	// contested is set if both schedulers bind the pod.
	contested bool
	tried     bool
}

func newRace(ctx context.Context, t *testing.T) *race {
	t.Helper()
	r := &race{bench: newBench(t, shared, nil), untried: racePods, asked: map[string]bool{}, refused: map[string]bool{}}
	r.toleration = gen.Tolerates(r.label())
	nodes := cluster.Nodes("race-"+r.ns, raceNodes, cluster.WithTaints(corev1.Taint{Key: r.label(), Effect: corev1.TaintEffectNoSchedule}))
	require.NoError(t, cluster.CreateNodes(ctx, r.client, nodes...))
	for _, node := range nodes {
		r.nodes = append(r.nodes, node.Name)
		t.Cleanup(func() {
			_ = r.client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{})
		})
	}
	r.ledger = newLedger(ctx, t, r.bench)
	for _, name := range []string{"left", "right"} {
		config, err := r.cluster.UserConfig("scheduler-"+name, "system:masters")
		require.NoError(t, err)
		client, err := kubernetes.NewForConfig(config)
		require.NoError(t, err)
		r.rivals = append(r.rivals, &rival{race: r, client: client, queue: make(chan *racer, racePods), done: make(chan struct{}), taken: map[string]bool{},
			rng: rand.New(rand.NewPCG(seeds.Of(t, 1)[0], uint64(len(r.rivals)))), //nolint:gosec // Not a secret.
		})
	}
	return r
}

// run creates the pods and returns when all of them have been bound.
func (r *race) run(ctx context.Context) {
	r.t.Helper()
	for n := range racePods {
		p := &racer{name: fmt.Sprintf("pod-%d", n), shares: [][]string{{""}, {":0.5"}, {":0.5"}, {":0.25"}, {":0.5", ":0.5"}}[n%5]}
		_, err := r.createPod(p.name, byHand, r.toleration)
		require.NoError(r.t, err)
		p.contested = n < raceContestants
		for i, s := range r.rivals {
			if p.contested || n%len(r.rivals) == i {
				s.left.Add(1)
				s.queue <- p
			}
		}
	}
	var workers sync.WaitGroup
	for _, s := range r.rivals {
		for range raceWorkers {
			workers.Go(func() { s.work(ctx) })
		}
	}
	workers.Wait()
	require.NoError(r.t, ctx.Err(), "%d pods of %d were bound", r.ledger.count(), racePods)
	r.ledger.until(ctx, "all pods bound", func() bool { return len(r.ledger.bound) == racePods })
	assert.Empty(r.t, r.strange, "a scheduler should get only rejections for held devices")
}

// rival is a scheduler with a separate, outdated view of the devices in use.
type rival struct {
	*race
	client kubernetes.Interface
	queue  chan *racer
	left   atomic.Int64
	done   chan struct{}

	// view guards the fields below.
	view  sync.Mutex
	rng   *rand.Rand
	taken map[string]bool
}

// work binds pods, one at a time, until all of the scheduler's are bound.
func (s *rival) work(ctx context.Context) {
	for {
		select {
		case p := <-s.queue:
			if !s.try(ctx, p) {
				s.queue <- p
			} else if s.left.Add(-1) == 0 {
				close(s.done)
			}
		case <-s.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// try posts a Binding of the pod, and reports whether the pod is bound.
func (s *rival) try(ctx context.Context, p *racer) bool {
	node, devices := s.choose(len(p.shares))
	s.ask(p, node, devices)
	binding := gen.Binding(gen.Pod(p.name, gen.InNamespace(s.ns)), node, gpu(p.value(devices)))
	err := s.client.CoreV1().Pods(s.ns).Bind(ctx, binding, metav1.CreateOptions{})
	// A shared device may have capacity that the scheduler does not know.
	s.believe(node, devices)
	switch {
	case err == nil:
		return true
	case p.contested && (isStale(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err)):
		return s.ledger.wasBound(p.name)
	case apierrors.IsForbidden(err):
		s.refuse(ctx, p, node, devices, err)
	case ctx.Err() == nil:
		s.odd("pod %s to %s of %s: %v", p.name, devices, node, err)
	}
	return false
}

// choose returns a node and devices that the scheduler considers free. If it knows too few, it considers all of them free.
func (s *rival) choose(n int) (node string, devices []string) {
	s.view.Lock()
	defer s.view.Unlock()
	for {
		for _, i := range s.rng.Perm(len(s.nodes)) {
			var free []string
			for _, d := range s.rng.Perm(raceDevices) {
				if device := fmt.Sprintf("GPU-%d", d); !s.taken[s.nodes[i]+"/"+device] {
					free = append(free, device)
				}
			}
			if len(free) >= n {
				return s.nodes[i], free[:n]
			}
		}
		clear(s.taken)
	}
}

func (s *rival) believe(node string, devices []string) {
	s.view.Lock()
	defer s.view.Unlock()
	for _, device := range devices {
		s.taken[node+"/"+device] = true
	}
}

// value returns the value of the annotation.
func (p *racer) value(devices []string) string {
	var parts []string
	for i, device := range devices {
		parts = append(parts, device+p.shares[i])
	}
	return strings.Join(parts, ",")
}

// ask records the devices of a Binding before it is posted.
func (r *race) ask(p *racer, node string, devices []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, device := range devices {
		r.asked[p.name+" "+node+" "+device] = true
	}
	if !p.tried {
		p.tried = true
		r.untried--
	}
}

func (r *race) odd(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.strange = append(r.strange, fmt.Sprintf(format, args...))
}

// heldBy matches the device and its first holder in a refusal.
var heldBy = regexp.MustCompile(`device (\S+) \(gpu\) is held by pod ([^/\s]+)/([^\s:;,]+)`)

// refuse checks the message of a refusal. After all pods have been tried, it also ends a pod.
func (r *race) refuse(ctx context.Context, p *racer, node string, devices []string, err error) {
	told := heldBy.FindAllStringSubmatch(err.Error(), -1)
	if len(told) == 0 || !strings.Contains(err.Error(), "device: Node "+node+": ") {
		r.odd("the denial of pod %s does not name the holder of %s on %s: %v", p.name, devices, node, err)
	}
	for _, t := range told {
		device, namespace, holder := t[1], t[2], t[3]
		r.mu.Lock()
		known := namespace == r.ns && holder != p.name && r.asked[holder+" "+node+" "+device] && slices.Contains(devices, device)
		r.mu.Unlock()
		if !known {
			r.odd("pod %s requested %s of %s: the rejection names %s, which %s/%s never requested: %v", p.name, devices, node, device, namespace, holder, err)
		}
	}
	r.mu.Lock()
	r.refusals++
	r.refused[p.name] = true
	crowded := r.untried == 0
	r.mu.Unlock()
	if crowded {
		r.endOne(ctx)
	}
}

// endOne ends the oldest bound pod in one of several ways. A terminating pod holds its devices until its next turn, when it is
// deleted.
func (r *race) endOne(ctx context.Context) {
	pod := r.ledger.oldest()
	if pod == nil {
		return
	}
	r.mu.Lock()
	r.ended++
	way := r.ended % 4
	r.mu.Unlock()
	pods := r.client.CoreV1().Pods(r.ns)
	var err error
	switch {
	case way == 0 && pod.DeletionTimestamp == nil:
		defer r.ledger.again(pod.UID)
		err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(600))})
	case way == 1 && pod.DeletionTimestamp == nil:
		_, err = pods.Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
	case way == 2 && pod.DeletionTimestamp == nil:
		_, err = pods.Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status")
	default:
		err = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	}
	if err != nil && ctx.Err() == nil {
		r.odd("ending pod %s: %v", pod.Name, err)
	}
}

// endAll deletes all pods, including terminating pods.
func (r *race) endAll(ctx context.Context) {
	r.t.Helper()
	require.NoError(r.t, r.client.CoreV1().Pods(r.ns).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{}))
	r.ledger.until(ctx, "all pods gone", func() bool { return len(r.ledger.living) == 0 })
}

// giveEachDevice binds a new pod for each device, which shows that no device is lost or held by a deleted pod.
func (r *race) giveEachDevice(ctx context.Context) {
	r.t.Helper()
	errs := make(chan error)
	for n, node := range r.nodes {
		for d := range raceDevices {
			name, scheduler := fmt.Sprintf("last-%d-%d", n, d), r.rivals[d%len(r.rivals)]
			pod, err := r.createPod(name, byHand, r.toleration)
			require.NoError(r.t, err)
			go func() {
				errs <- scheduler.client.CoreV1().Pods(r.ns).Bind(ctx, gen.Binding(pod, node, gpu(fmt.Sprintf("GPU-%d", d))), metav1.CreateOptions{})
			}()
		}
	}
	for range raceNodes * raceDevices {
		assert.NoError(r.t, <-errs, "every device should be free")
	}
	r.ledger.until(ctx, "every device in use", func() bool { return len(r.ledger.living) == raceNodes*raceDevices })
}

// assertToldWhy checks that each refused pod has an event with a device and its holder.
func (r *race) assertToldWhy() {
	r.t.Helper()
	require.EventuallyWithT(r.t, func(c *assert.CollectT) {
		list, err := r.client.CoreV1().Events(r.ns).List(r.t.Context(), metav1.ListOptions{FieldSelector: "reason=BindRefused"})
		require.NoError(c, err)
		silent := maps.Clone(r.refused)
		for _, e := range list.Items {
			if heldBy.MatchString(e.Message) {
				delete(silent, e.InvolvedObject.Name)
			}
		}
		assert.Empty(c, slices.Sorted(maps.Keys(silent)), "every rejected pod should have an event with the reason")
	}, patience, again)
}

// ledger contains the holders of devices. It reads only pods, not the records of Prebind.
type ledger struct {
	ns string

	mu sync.Mutex
	// changed is closed, and replaced, with every event.
	changed chan struct{}
	// living contains the pods that hold devices, and line their order.
	living map[types.UID]*corev1.Pod
	line   []types.UID
	// used is the held part of each device. most is the maximum of all devices together.
	used map[string]*big.Rat
	most *big.Rat
	// bound contains the names of all pods that have been bound. byReplica counts them by the replica that granted their
	// devices.
	bound     map[string]bool
	byReplica map[string]int
	wrong     []string
}

// newLedger observes the pods of the namespace, which must be empty.
func newLedger(ctx context.Context, t *testing.T, b *bench) *ledger {
	t.Helper()
	l := &ledger{
		ns: b.ns, changed: make(chan struct{}), living: map[types.UID]*corev1.Pod{},
		used: map[string]*big.Rat{}, most: new(big.Rat), bound: map[string]bool{}, byReplica: map[string]int{},
	}
	list, err := b.client.CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, list.Items)
	events, err := b.client.CoreV1().Pods(b.ns).Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	over := make(chan struct{})
	t.Cleanup(func() {
		events.Stop()
		<-over
	})
	go func() {
		defer close(over)
		for e := range events.ResultChan() {
			l.enter(e)
		}
	}()
	return l
}

// enter adds one event.
func (l *ledger) enter(e watch.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		close(l.changed)
		l.changed = make(chan struct{})
	}()
	pod, ok := e.Object.(*corev1.Pod)
	if !ok {
		l.wrong = append(l.wrong, fmt.Sprintf("the watch ended: %v", e.Object))
		return
	}
	before := l.living[pod.UID]
	switch {
	case e.Type == watch.Deleted || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		if before != nil {
			l.add(before, -1)
			delete(l.living, pod.UID)
		}
	case pod.Spec.NodeName == "":
	case before != nil:
		l.living[pod.UID] = pod
		if was, is := before.Annotations["device.prebind.dev/gpu"], pod.Annotations["device.prebind.dev/gpu"]; was != is || before.Spec.NodeName != pod.Spec.NodeName {
			l.wrong = append(l.wrong, fmt.Sprintf("pod %s had %q and has %q now", pod.Name, was, is))
		}
	default:
		l.living[pod.UID] = pod
		l.line = append(l.line, pod.UID)
		l.bound[pod.Name] = true
		replica, _, _ := strings.Cut(pod.Annotations[attemptKey], "-")
		l.byReplica[replica]++
		l.add(pod, 1)
	}
}

// add adds the pod's devices if times is 1, and removes them if times is -1.
func (l *ledger) add(pod *corev1.Pod, times int64) {
	for entry := range strings.SplitSeq(pod.Annotations["device.prebind.dev/gpu"], ",") {
		id, text, shared := strings.Cut(entry, ":")
		if !shared {
			text = "1"
		}
		share, ok := new(big.Rat).SetString(text)
		if !ok || id == "" {
			l.wrong = append(l.wrong, fmt.Sprintf("pod %s is bound with the devices %q", pod.Name, entry))
			continue
		}
		device := pod.Spec.NodeName + "/" + id
		if l.used[device] == nil {
			l.used[device] = new(big.Rat)
		}
		l.used[device].Add(l.used[device], share.Mul(share, big.NewRat(times, 1)))
		if times > 0 && l.used[device].Cmp(big.NewRat(1, 1)) > 0 {
			l.wrong = append(l.wrong, fmt.Sprintf("%s of %s are held, by %s", l.used[device].FloatString(2), device, l.holders(pod.Spec.NodeName, id)))
		}
	}
	all := new(big.Rat)
	for _, used := range l.used {
		all.Add(all, used)
	}
	if all.Cmp(l.most) > 0 {
		l.most = all
	}
}

func (l *ledger) holders(node, id string) []string {
	var names []string
	for _, pod := range l.living {
		if value := pod.Annotations["device.prebind.dev/gpu"]; pod.Spec.NodeName == node && slices.ContainsFunc(strings.Split(value, ","), func(entry string) bool {
			return entry == id || strings.HasPrefix(entry, id+":")
		}) {
			names = append(names, pod.Name+" ("+value+")")
		}
	}
	return names
}

// oldest removes the first living pod from the line. It returns nil if the line is empty.
func (l *ledger) oldest() *corev1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.line) > 0 {
		first := l.line[0]
		l.line = l.line[1:]
		if pod := l.living[first]; pod != nil {
			return pod
		}
	}
	return nil
}

// again appends the pod to the line.
func (l *ledger) again(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line = append(l.line, uid)
}

func (l *ledger) wasBound(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bound[name]
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.bound)
}

// until waits until the condition holds after an event.
func (l *ledger) until(ctx context.Context, what string, condition func() bool) {
	for {
		l.mu.Lock()
		changed, ok := l.changed, condition()
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			l.mu.Lock()
			l.wrong = append(l.wrong, "it never came to "+what)
			l.mu.Unlock()
			return
		}
	}
}
