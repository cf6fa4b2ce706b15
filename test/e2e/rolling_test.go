// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
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

// loner is a replica that is not part of the Service, with a separate kubeconfig.
type loner struct {
	*cluster.Process
	webhook, health string
}

// loner starts a live replica, which may not be ready. Its only plugin writes no marks, so it does not affect the attempts of other replicas.
func (b *bench) loner(kubeconfig string, args ...string) *loner {
	b.t.Helper()
	l := &loner{}
	for _, address := range []*string{&l.webhook, &l.health} {
		var err error
		*address, err = b.cluster.ReserveAddress(b.t.Context())
		require.NoError(b.t, err)
	}
	l.Process = cluster.NewProcess(cluster.ProcessOptions{
		Name: "loner-" + b.ns,
		Path: b.prebind.Binary(),
		Args: append([]string{
			"serve", "--kubeconfig=" + kubeconfig, "--cert-dir=" + b.prebind.CertDir(), "--webhook-bind-address=" + l.webhook,
			"--health-probe-bind-address=" + l.health, "--metrics-bind-address=0", "--prebind-plugins=volumebinding", "--shutdown-delay=0s",
		}, args...),
		LogFile: filepath.Join(b.t.TempDir(), "log"),
		Health: func(ctx context.Context) error {
			body, code, err := install.Fetch(ctx, "http://"+l.health+"/healthz")
			if err == nil && code != http.StatusOK {
				err = errors.New(body)
			}
			return err
		},
	})
	b.t.Cleanup(func() { assert.NoError(b.t, l.Kill()) })
	require.NoError(b.t, l.Run(b.t.Context()))
	return l
}

// untilReadyz waits until the response of the probe has the code and contains the words.
func (b *bench) untilReadyz(l *loner, code int, words ...string) {
	b.t.Helper()
	require.EventuallyWithT(b.t, func(c *assert.CollectT) {
		body, got, err := install.Fetch(b.t.Context(), "http://"+l.health+"/readyz")
		require.NoError(c, err)
		assert.Equal(c, code, got, "%s", body)
		for _, w := range words {
			assert.Contains(c, body, w)
		}
	}, 2*patience, again) // A watch that the API server has forbidden is repeated after up to a minute.
}

// narrow creates a service account with the shipped core permissions, and a separate ClusterRoleBinding for the permissions of
// volumebinding. It returns the name of that binding.
func (b *bench) narrow() (kubeconfig, binding string) {
	b.t.Helper()
	ctx := b.t.Context()
	b.kubectl("create", "serviceaccount", "narrow", "--namespace="+b.ns)
	for _, name := range []string{"prebind", "prebind-volumebinding"} {
		role, err := b.client.RbacV1().Roles(install.Namespace).Get(ctx, name, metav1.GetOptions{})
		require.NoError(b.t, err)
		role.ObjectMeta = metav1.ObjectMeta{Name: name}
		_, err = b.client.RbacV1().Roles(b.ns).Create(ctx, role, metav1.CreateOptions{})
		require.NoError(b.t, err)
		account := "--serviceaccount=" + b.ns + ":narrow"
		b.kubectl("create", "rolebinding", name, "--namespace="+b.ns, "--role="+name, account)
		binding = name + "-" + b.ns
		b.kubectl("create", "clusterrolebinding", binding, "--clusterrole="+name, account)
		b.t.Cleanup(func() {
			err := b.client.RbacV1().ClusterRoleBindings().Delete(context.WithoutCancel(ctx), name+"-"+b.ns, metav1.DeleteOptions{})
			assert.True(b.t, err == nil || apierrors.IsNotFound(err), "%v", err)
		})
	}
	kubeconfig, err := b.cluster.ServiceAccountKubeconfig(ctx, b.ns, "narrow")
	require.NoError(b.t, err)
	return kubeconfig, binding
}

// A replica that starts without a permission is not ready and names it. It becomes ready when the permission is granted. A replica
// that loses a permission logs it and stays ready.
func TestMissingPermission(t *testing.T) {
	t.Parallel()
	b := newBench(t, shared, nil)
	kubeconfig, binding := b.narrow()
	proxy, err := b.cluster.NewAPIProxy(kubeconfig, t.TempDir())
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	bindings := b.client.RbacV1().ClusterRoleBindings()
	granted, err := bindings.Get(t.Context(), binding, metav1.GetOptions{})
	require.NoError(t, err)
	granted.ResourceVersion = ""
	require.NoError(t, bindings.Delete(t.Context(), binding, metav1.DeleteOptions{}))

	l := b.loner(proxy.Kubeconfig, "--namespace="+b.ns)
	b.untilReadyz(l, http.StatusServiceUnavailable,
		"PreBind plugin volumebinding: the service account lacks a permission", "cannot list resource", "apply its role")
	logged := func() int {
		log, err := os.ReadFile(l.LogFile())
		require.NoError(t, err)
		return strings.Count(string(log), `"A permission is missing" err="PreBind plugin volumebinding: `)
	}
	assert.Positive(t, logged())
	_, err = bindings.Create(t.Context(), granted, metav1.CreateOptions{})
	require.NoError(t, err)
	b.untilReadyz(l, http.StatusOK, "ok")

	before := logged()
	require.NoError(t, bindings.Delete(t.Context(), binding, metav1.DeleteOptions{}))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		proxy.Disconnect() // The API server may still have the old role.
		assert.Greater(c, logged(), before)
	}, patience, again)
	b.untilReadyz(l, http.StatusOK, "ok")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		out, _, _ := b.command("status", "--prebind-namespace="+b.ns, "-o=json")
		assert.Contains(c, out, "PreBind plugin volumebinding: the service account lacks a permission", "its old objects decide")
	}, patience, again)
	assert.NoError(t, l.Err(), "the replica should keep running")
}

// After the loss of all replicas and their nodes, the API server binds exempt pods, such as Prebind's own. All other pods are bound when
// Prebind runs again.
func testAllReplicasDied(t *testing.T, w *world) {
	own := w.client.CoreV1().Pods(install.Namespace)
	bound := func(not ...corev1.Pod) []corev1.Pod {
		var pods []corev1.Pod
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			list, err := own.List(t.Context(), metav1.ListOptions{})
			require.NoError(c, err)
			pods = list.Items
			assert.Len(c, pods, 2)
			for _, pod := range pods {
				assert.NotEmpty(c, pod.Spec.NodeName, "%s should be bound", pod.Name)
				for _, old := range not {
					assert.NotEqual(c, old.UID, pod.UID)
				}
			}
		}, patience, again, "the Deployment should have two pods, each with a node")
		return pods
	}
	first := bound()
	for _, r := range w.prebind.Replicas() {
		require.NoError(t, r.Kill())
	}
	b, exempt := newBench(t, w, nil), newBench(t, w, map[string]string{"prebind.dev/exempt": ""})
	b.pod(cluster.DefaultScheduler)
	b.untilEvent("FailedScheduling", "failed calling webhook", install.WebhookName)
	exempt.pod(cluster.DefaultScheduler)
	exempt.untilBound()
	assert.Empty(t, exempt.decisions())
	now := int64(0)
	require.NoError(t, own.DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	bound(first...)
	b.assertNotBound()

	out, errs, code := b.command("explain", "pod", "--node=node-1", "-n="+b.ns)
	assert.Equal(t, 3, code, "explain should report an unknown result during an outage")
	assert.Empty(t, out)
	assert.Contains(t, errs, "the API server cannot reach Prebind")
	assert.Equal(t, 1, strings.Count(errs, "\n"), errs)

	for _, r := range w.prebind.Replicas() {
		require.NoError(t, r.Run(t.Context()))
	}
	b.assertTopology(b.untilBound())
}
