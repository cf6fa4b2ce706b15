// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/util/retry"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

const (
	// interval gives a stream of 5 binds per second. Several streams share two processors with their control planes.
	interval = 200 * time.Millisecond
	// atLeast is the number of binds in twenty seconds.
	atLeast = 100
	// withClaims is the number of pods per ten that have a claim, so that their bind waits: one for each of the two kube-schedulers,
	// and one that is bound by hand.
	withClaims = 3
)

// stream posts Bindings at a steady rate. It posts each Binding once with a plain client. Only client-go repeats calls.
type stream struct {
	*bench
	class      string
	stop, done chan struct{}

	mu     sync.Mutex
	posted int
	failed []string
}

// newStream creates a class with the provisioning time, and a node for the kube-schedulers with sufficient capacity.
func newStream(t *testing.T, w *world, delay string) *stream {
	t.Helper()
	s := &stream{bench: newBench(t, w, nil), stop: make(chan struct{}), done: make(chan struct{})}
	s.class = s.dynamic(delay)
	require.NoError(t, cluster.CreateNodes(t.Context(), w.client, cluster.Node("wide-"+s.ns,
		cluster.WithLabels(map[string]string{s.label(): "yes"}),
		cluster.WithResources(corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10k")}))))
	return s
}

// during runs the stream while f runs, and checks that no bind fails.
func (s *stream) during(f func()) {
	s.t.Helper()
	s.begin()
	f()
	s.end()
}

// begin starts the stream.
func (s *stream) begin() {
	go func() {
		defer close(s.done)
		s.run()
	}()
}

// end stops the stream when it has posted enough Bindings. It checks that every pod was bound and that no Binding was rejected.
func (s *stream) end() {
	s.t.Helper()
	close(s.stop)
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatal("not all binds have an answer")
	}
	assert.Empty(s.t, s.failed)
	assert.GreaterOrEqual(s.t, s.posted, atLeast)
	require.EventuallyWithT(s.t, func(c *assert.CollectT) {
		left, err := s.unbound(s.t.Context())
		require.NoError(c, err)
		assert.Empty(c, left)
	}, patience, again, "all pods should be bound")
	assert.Empty(s.t, s.failures())
	s.t.Logf("%d binds, %d failures", s.posted, len(s.failed))
}

// run posts Bindings until the stream is stopped and has posted enough. It returns when all of them have a response.
func (s *stream) run() {
	var posts sync.WaitGroup
	defer posts.Wait()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-s.t.Context().Done():
			return
		case <-tick.C:
		}
		select {
		case <-s.stop:
			if n >= atLeast {
				return
			}
		default:
		}
		posts.Go(func() { s.note(n, s.bindOne(n)) })
	}
}

func (s *stream) note(n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posted++
	if err != nil {
		s.failed = append(s.failed, fmt.Sprintf("bind %d: %v", n, err))
	}
}

// answered returns the number of binds with a response.
func (s *stream) answered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.posted
}

// bindOne creates the n-th pod and binds it by hand, unless the pod is for a kube-scheduler.
func (s *stream) bindOne(n int) error {
	name := fmt.Sprintf("pod-%d", n)
	var options []gen.PodOption
	if n%10 < withClaims {
		if err := s.createClaim(name, s.class); err != nil {
			return err
		}
		options = append(options, gen.UsesClaim(name))
	}
	scheduler := s.schedulerOf(n)
	if scheduler != byHand {
		options = append(options, s.steered())
	}
	pod, err := s.createPod(name, scheduler, options...)
	if err != nil || scheduler != byHand {
		return err
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	return s.client.CoreV1().Pods(s.ns).Bind(ctx, gen.Binding(pod, fmt.Sprintf("node-%d", n%6+1)), metav1.CreateOptions{})
}

// schedulerOf returns a kube-scheduler for two of ten pods.
func (*stream) schedulerOf(n int) string {
	switch n % 10 {
	case 0:
		return cluster.NoPreBindScheduler
	case 1:
		return cluster.DefaultScheduler
	default:
		return byHand
	}
}

// unbound returns the pods without a node.
func (b *bench) unbound(ctx context.Context) ([]string, error) {
	list, err := b.client.CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, pod := range list.Items {
		names = append(names, pod.Name)
	}
	return names, nil
}

// failures returns the failures that kube-scheduler has reported. It omits failures before kube-scheduler observes the claim of
// the pod.
func (b *bench) failures() []string {
	var out []string
	for _, e := range b.allEvents() {
		// kube-scheduler can see a new pod before its claim.
		early := strings.Contains(e, "could not find v1.PersistentVolumeClaim")
		if strings.HasPrefix(e, "FailedScheduling") && !strings.Contains(e, "nodes are available") && !early {
			out = append(out, e)
		}
	}
	return out
}

// Tests that stop replicas have their own installation. They run one after another.
func TestRestarts(t *testing.T) {
	t.Parallel()
	w := ownWorld(t, install.Options{}, 2)
	// No bind of a steady stream fails while two replicas are replaced one after another, as in a rollout.
	t.Run("rolling restart in a stream of binds", func(t *testing.T) {
		newStream(t, w, "3s").during(func() {
			for _, r := range w.prebind.Replicas() {
				began := time.Now()
				require.NoError(t, r.Process.Stop())
				t.Logf("%s exited after %s", r.Name(), time.Since(began).Round(time.Millisecond))
				require.NoError(t, r.Run(t.Context()))
			}
		})
	})
	t.Run("all replicas died", func(t *testing.T) { testAllReplicasDied(t, w) })
	t.Run("uninstallation", func(t *testing.T) { testUninstall(t, w) })
}

// bindWithRetries binds the pod with the rules of kube-scheduler 1.37 (BindPod and Retriable in pkg/scheduler/util of v1.37.2): it
// repeats transient errors immediately, in addition to the repeats of 429 by client-go.
func (b *bench) bindWithRetries(ctx context.Context, binding *corev1.Binding) error {
	return retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || net.IsConnectionRefused(err)
	}, func() error {
		return b.client.CoreV1().Pods(binding.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
	})
}

// killDuringBind kills the replica that has granted a device to a bind that waits for its volume. The other replica continues the bind.
func (w *world) killDuringBind(t *testing.T, doomed, other *install.Replica) *parker {
	t.Helper()
	w.prebind.RouteTo(doomed)
	// The API server keeps its connections to the other replica.
	w.cluster.Services().Cut(other.WebhookAddress())
	w.cluster.Services().Heal(other.WebhookAddress())
	p := newGarage(t, w).parker(gpu("GPU-1"), gen.UsesClaim("data"))
	p.claim("data", p.dynamic("10s"))
	done := make(chan error, 1)
	go func() { done <- p.bindWithRetries(t.Context(), p.binding(p.garage.node)) }()
	p.untilSelected()
	entry := grantedTo(p.record(p.garage.node), p.uid)
	require.NotNil(t, entry)
	require.Equal(t, doomed, p.replicaOfAttempt(entry.Grants[0].Attempt))
	w.prebind.RouteTo(other)
	require.NoError(t, doomed.Kill())
	require.NoError(t, p.end(done), "the scheduler should not see the kill")
	p.untilSettled(map[string]string{"GPU-1": "1"})
	p.assertClaimBound("data", p.garage.node)
	return p
}

// No bind of a steady stream fails while Prebind is removed as documented. The tests of the release check that nothing remains.
func testUninstall(t *testing.T, w *world) {
	t.Helper()
	s := newStream(t, w, "1s")
	s.during(func() {
		// Wait for some binds of each kind before the removal.
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, s.answered(), atLeast/4) }, patience, again)
		require.NoError(t, w.prebind.Uninstall(t.Context()))
		assert.Empty(t, w.prebind.Replicas())
		last := s.answered()
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Greater(c, s.answered(), last+atLeast/4) }, patience, again, "binds should continue")
	})
}
