// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// Tests of the end of a bind have their own installation.
func TestResourceClaimsRollBack(t *testing.T) {
	t.Parallel()
	// This test waits for minutes, so it starts without a slot of ownClusters.
	o := install.Options{Cluster: clustertest.Start(t, cluster.Options{Audit: true})}
	w := ownWorldWith(t, o, 0)
	for range 2 {
		_, err := w.start(t.Context())
		require.NoError(t, err)
	}
	hook := &laterHook{refuses: map[string]int{}}
	newHook(t, w, on([]admissionregistrationv1.OperationType{admissionregistrationv1.Create}, "pods/binding"), hook.judge, func() error {
		return w.client.CoreV1().Pods(metav1.NamespaceDefault).Bind(t.Context(),
			gen.Binding(gen.Pod(canary), "node-1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	})
	t.Run("undisturbed", func(t *testing.T) {
		t.Run("reservations are rolled back", func(t *testing.T) { testReservationRolledBack(t, w, hook) })
		t.Run("kube-scheduler's reservation is its own", func(t *testing.T) { testSchedulersReservation(t, w, hook) })
		t.Run("forged marks never remove a reservation in use", func(t *testing.T) { testForgedMarks(t, w) })
	})
	t.Run("killed after it is allowed", func(t *testing.T) { testKilledAfterReservation(t, w, hook) })
	t.Run("killed while it waits", func(t *testing.T) { testKilledWhileWaiting(t, w) })
	t.Run("switched off", func(t *testing.T) { testResourceClaimsOff(t, w) })
}

// laterHook is a webhook that refuses the given number of Bindings of a namespace after Prebind has allowed them.
type laterHook struct {
	mu      sync.Mutex
	refuses map[string]int
}

func (h *laterHook) judge(_ context.Context, r *admissionv1.AdmissionRequest) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuses[r.Namespace] == 0 {
		return nil
	}
	h.refuses[r.Namespace]--
	return errors.New("refused by the hook of the test")
}

func (h *laterHook) refuse(b *bench, times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuses[b.ns] = times
}

// refusedLater posts the Binding of the pod, which Prebind allows and the hook refuses.
func (b *bench) refusedLater(h *laterHook, node string) {
	b.t.Helper()
	h.refuse(b, 1)
	err := b.bindByHand(b.binding(node))
	require.ErrorContains(b.t, err, "refused by the hook of the test")
	said := b.decisions()
	require.Equal(b.t, "allowed", said[len(said)-1])
}

// The bind is refused after Prebind has reserved one of the pod's two claims. Prebind removes that reservation and keeps writes of other
// clients.
func testReservationRolledBack(t *testing.T, w *world, hook *laterHook) {
	t.Parallel()
	b := newBench(t, w, nil)
	pod := b.podWith(byHand, gen.UsesResourceClaim("reserved"), gen.UsesResourceClaim("free"))
	requests := gen.RequestsDevices("some.example.com", 1)
	b.resourceClaim("reserved", requests, gen.AllocatedFor("node-1", "some.example.com", gen.Device("gpu-0")), gen.ReservedForPod(pod.Name, pod.UID))
	free := b.resourceClaim("free", requests, gen.AllocatedFor("node-1", "some.example.com", gen.Device("gpu-1")))
	seen := b.watchResourceClaims()

	b.refusedLater(hook, "node-1")
	assert.NotEmpty(t, marksOn(b.assertReserved("free", pod))[string(pod.UID)], "the bind may still succeed")
	claim := b.untilResourceClaim("free", "released", released)
	assert.Equal(t, free.Status.Allocation, claim.Status.Allocation, "the allocation should not belong to Prebind")
	b.untilEvent("PreBindRolledBack", "resource-claims: Node node-1: the pod was not bound")
	own := b.assertReserved("reserved", pod)
	for _, claim := range seen.upTo(b, own) {
		if claim.Name == "reserved" {
			assert.Empty(t, marksOn(claim), "the claim should have no marks")
			assert.False(t, writtenByPrebind(claim), "Prebind should not have written the claim")
		}
	}

	require.NoError(t, b.bindByHand(b.binding("node-1")))
	b.untilBound()
	b.untilUnmarked("free")
	b.assertReserved("free", pod)
	b.assertReserved("reserved", pod)
}

// kube-scheduler removes its own reservation when its bind fails, and reserves the claim again immediately. Prebind does not interfere,
// even if its cache is outdated.
func testSchedulersReservation(t *testing.T, w *world, hook *laterHook) {
	t.Parallel()
	for i := range 10 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, w, nil)
			d := b.newDeviceDriver(b.ns + ".example.com")
			d.publish("node-3", gen.Device("gpu-0"))
			b.resourceClaim("gpu", gen.RequestsDevices(d.name, 1))
			seen := b.watchResourceClaims()
			hook.refuse(b, 1)
			b.podWith(cluster.DefaultScheduler, gen.UsesResourceClaim("gpu"))
			b.untilEvent("FailedScheduling", "refused by the hook of the test")
			pod := b.untilBound()
			for _, claim := range seen.upTo(b, b.assertReserved("gpu", pod)) {
				assert.Empty(t, marksOn(claim))
				assert.False(t, writtenByPrebind(claim))
			}
			assert.Equal(t, []string{"allowed", "allowed"}, b.decisions(), "%q", b.events())
			assert.NotContains(t, pod.Annotations, attemptKey, "kube-scheduler has completed the preparation")
			assert.False(t, says(b.events(), "PreBindRolledBack"), "%q", b.events())
		})
	}
}

// attemptOn returns the attempt that has marked the claim for the pod.
func (b *bench) attemptOn(claim *resourcev1.ResourceClaim, pod *corev1.Pod) string {
	b.t.Helper()
	attempts := marksOn(claim)[string(pod.UID)]
	require.NotEmpty(b.t, attempts, "the claim %s should be marked", claim.Name)
	return attempts[0]
}

// killReplicaOf kills the replica of the attempt, and restarts it after the test.
func (b *bench) killReplicaOf(attempt string) {
	b.t.Helper()
	killed := b.replicaOfAttempt(attempt)
	require.NoError(b.t, killed.Kill())
	b.t.Cleanup(func() { assert.NoError(b.t, killed.Restart(context.WithoutCancel(b.t.Context()))) })
}

// The replica is killed between reservation and bind, and the bind fails: the other replica removes the reservation.
func testKilledAfterReservation(t *testing.T, w *world, hook *laterHook) {
	b := newBench(t, w, nil)
	before := b.resourceClaim("gpu", gen.RequestsDevices("some.example.com", 1), gen.AllocatedFor("node-4", "some.example.com", gen.Device("gpu-7")))
	pod := b.podWith(byHand, gen.UsesResourceClaim("gpu"))
	b.refusedLater(hook, "node-4")
	b.killReplicaOf(b.attemptOn(b.assertReserved("gpu", pod), pod))
	b.assertReserved("gpu", pod)

	claim := b.untilResourceClaim("gpu", "released", released)
	assert.Equal(t, before.Status.Allocation, claim.Status.Allocation, "the allocation should not belong to Prebind")
	b.untilEvent("PreBindRolledBack", "node-4")
	assert.Empty(t, b.until("still unbound", notBound).Spec.NodeName)

	require.NoError(t, b.bindByHand(b.binding("node-4")))
	b.untilBound()
	b.untilUnmarked("gpu")
	b.assertReserved("gpu", pod)
}

// The replica is killed while the bind waits for its device: the other replica continues the bind, and the sweep of the killed replica's marks does not disturb it.
func testKilledWhileWaiting(t *testing.T, w *world) {
	w.needs(t, bindingConditions)
	b := newBench(t, w, nil)
	d := b.newDeviceDriver(b.ns + ".example.com")
	slow := gen.BoundBy(gen.Device("nic-0"), attached, broken)
	d.publish("node-5", slow)
	b.resourceClaim(slowClaim, gen.RequestsDevices(d.name, 1), gen.AllocatedFor("node-5", d.name, slow))
	seen := b.watchResourceClaims()
	pod := b.podWith(byHand, gen.UsesResourceClaim(slowClaim))
	ctx, bound := t.Context(), make(chan []error, 1)
	go func() { bound <- b.insist(ctx, b.binding("node-5")) }()
	attempt := b.attemptOn(b.untilResourceClaim(slowClaim, "reserved", reservedOnceFor(pod)), pod)
	b.killReplicaOf(attempt)

	b.untilResourceClaim(slowClaim, "swept", func(claim *resourcev1.ResourceClaim) bool {
		return !slices.Contains(marksOn(claim)[string(pod.UID)], attempt)
	})
	b.untilResourceClaim(slowClaim, "reserved", reservedOnceFor(pod))
	d.report(attached, "Attached", "")
	errs := <-bound
	require.NoError(t, errs[len(errs)-1])
	d.assertReadyBefore(b.untilBound())
	b.untilUnmarked(slowClaim)
	b.assertReserved(slowClaim, pod)

	lost := slices.IndexFunc(seen.all(), func(claim *resourcev1.ResourceClaim) bool {
		return len(marksOn(claim)) > 0 && !reservedOnceFor(pod)(claim) && writtenStatus(claim)
	})
	assert.Negative(t, lost, "the pod should keep its reservation")
}

// writtenStatus reports whether Prebind has written the claim's status.
func writtenStatus(claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Subresource == "status" && m.Manager != "some-scheduler"
	})
}

// The disabled plugin does not check or write claims.
func testResourceClaimsOff(t *testing.T, w *world) {
	require.NoError(t, w.prebind.Stop())
	_, err := w.prebind.Start(t.Context(), append(slices.Clone(w.args), "--prebind-plugins=*,-resource-claims")...)
	require.NoError(t, err)
	b := newBench(t, w, nil)
	before := b.resourceClaim("gpu", gen.RequestsDevices("some.example.com", 1))
	b.podWith(byHand, gen.UsesResourceClaim("gpu"), gen.UsesResourceClaim("missing"))
	require.NoError(t, b.bindByHand(b.binding("node-1")))
	b.assertTopology(b.untilBound())
	assert.Equal(t, []string{"allowed"}, b.decisions())
	assert.Equal(t, before.ResourceVersion, b.getResourceClaim("gpu").ResourceVersion)
}

// If the API server does not serve ResourceClaims, as in Kubernetes 1.33, Prebind omits the plugin, logs this, and runs the other
// plugins.
func TestResourceClaimsAbsent(t *testing.T) {
	t.Parallel()
	needsEmulation(t, "1.33")
	// A control plane does not become ready if only the API is disabled.
	emulated := []string{"--emulated-version=1.33"}
	c := ownCluster(t, cluster.Options{Audit: true, ExtraArgs: map[string][]string{
		cluster.APIServer: emulated, cluster.ControllerManager: emulated, cluster.Scheduler: emulated,
	}})
	w, err := newWorld(t.Context(), c, shared.prebind.Binary(), 1)
	require.NoError(t, err)
	replica := w.prebind.Replicas()[0]
	t.Cleanup(func() { assert.NoError(t, replica.Kill()) })
	_, err = w.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	log, err := os.ReadFile(replica.LogFile())
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "the API server does not serve the kind") && !strings.Contains(line, `plugin="policy"`) {
			lines = append(lines, line)
		}
	}
	require.Len(t, lines, 1, "%s", log)
	assert.Contains(t, lines[0], `plugin="resource-claims"`)
	assert.Contains(t, lines[0], "resource.k8s.io/v1, Kind=ResourceClaim")

	for _, scheduler := range []string{byHand, cluster.NoPreBindScheduler} {
		b := newBench(t, w, nil)
		b.claim("data", b.dynamic("1s"))
		pod := b.bind(scheduler, "node-1", "data")
		b.assertClaimBound("data", pod.Spec.NodeName)
	}
	require.NoError(t, replica.Err())
}
